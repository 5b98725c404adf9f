"""The conformance suite for schedulers."""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar
from unittest import mock

import pytest
from plaunch.scheduling import Allocation

from plaunch_testing.conformance.plugin_suite import Audit, PluginSuite, opened, usage_errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plaunch.plugin import Scheduler

_GARBAGE = (
    "",
    " ",
    "garbage",
    "-1",
    "0",
    "1",
    "2",
    "3.5",
    "9" * 400,
    "²",
    "1,2",
    "a[1-",
    "a[3-1]",
    "1(x2",
    "/no/such/file",
    "[::1",
    "host:99999",
    "\udcff",
    "x" * 10_000,
)
_TRIES = 300


class SchedulerConformance(PluginSuite):
    """Subclass this suite and implement `plugin`; pytest collects the subclass.

    `environments` are examples of environments of launchers: each must yield an `Allocation`.
    Without them, only garbage is tested. `files` are paths of files that the scheduler writes on
    each node for launchers.
    """

    environments: ClassVar[Sequence[Mapping[str, str]]] = ()
    files: ClassVar[Sequence[str]] = ()

    def plugin(self) -> Scheduler:
        """Return the object that the scheduler's name refers to; override this."""
        raise NotImplementedError

    def find(self, environ: Mapping[str, str]) -> Allocation | None:
        """Return its allocation; None if it raises a `UsageError`."""
        with usage_errors():
            answer: Allocation = self.call("the answer", self.thing, environ)
            return answer
        return None

    def use_once(self) -> object:
        """Call it once with each environment."""
        return [self.find(environ) for environ in ({}, *self.environments)]

    def allocations(self) -> list[tuple[Mapping[str, str], Allocation]]:
        """Return the environments that yield an allocation, with the allocations."""
        found = [(environ, self.find(environ)) for environ in ({}, *self.environments)]
        return [(environ, one) for environ, one in found if isinstance(one, Allocation)]

    def test_it_recognises_its_own_environments(self) -> None:
        """Each of `environments` yields an `Allocation`."""
        if not self.environments:
            pytest.skip("no environments are given")
        for environ in self.environments:
            answer = self.call("the answer", self.thing, environ)
            assert isinstance(answer, Allocation), f"for {dict(environ)!r} it returns {answer!r}"

    def test_it_handles_an_empty_environment(self) -> None:
        """It raises a `UsageError`, or returns a nearly empty `Allocation`."""
        answer = self.find({})
        assert answer is None or isinstance(answer, Allocation), f"it returns {answer!r}"

    def test_it_survives_garbage(self) -> None:
        """For garbage in variables, it raises `UsageError` or returns an `Allocation`."""
        dice = random.Random(0)  # noqa: S311 - reproducible garbage
        known: dict[str, None] = {}
        starts = [{}, *(dict(environ) for environ in self.environments)]
        for number in range(_TRIES):
            environ = dict(starts[number % len(starts)])
            for name in known:
                if dice.random() < 0.5:
                    environ[name] = dice.choice(_GARBAGE)
            if environ and dice.random() < 0.2:
                del environ[dice.choice(sorted(environ))]
            watched = _RecordingEnvironment(environ)
            try:
                answer = self.find(watched)
            except Exception as error:  # noqa: BLE001 - reported with its input
                read = {name: environ[name][:80] for name in watched.asked if name in environ}
                pytest.fail(f"for {read!r} it raises {error!r}")
            assert answer is None or isinstance(answer, Allocation), f"it returns {answer!r}"
            known.update(dict.fromkeys(watched.asked))

    def test_it_returns_the_same_again(self) -> None:
        """All nodes must agree, so equal variables yield equal allocations."""
        for environ, first in self.allocations():
            assert self.find(dict(environ)) == first

    def test_it_explains_what_it_sets_and_what_it_does_not(self) -> None:
        """`sources` names fields that are set, and `missing` fields that are not."""
        for _, answer in self.allocations():
            fields = {
                name: bool(value) if isinstance(value, str) else value is not None
                for name, value in vars(answer).items()
                if name not in ("sources", "missing")
            }
            for name in answer.sources:
                assert fields.get(name), f"sources names {name!r}, which is not set"
            for name in answer.missing:
                assert fields.get(name) is False, (
                    f"missing names {name!r}, which is set, or not a field"
                )

    def test_the_allocation_is_plain_data(self) -> None:
        """It can be pickled."""
        for _, answer in self.allocations():
            assert pickle.loads(pickle.dumps(answer)) == answer  # noqa: S301 - just written

    def test_it_reads_the_environment_that_it_is_given(self) -> None:
        """It does not read the environment of the process."""
        for environ, answer in self.allocations():
            others = {**os.environ, **dict.fromkeys(environ, "1"), "RANK": "1"}
            with mock.patch.dict(os.environ, others):
                assert self.find(environ) == answer

    def test_it_uses_no_network_and_no_program(self) -> None:
        """It must return at once on all nodes."""
        self.use_once()  # loads its imports
        with Audit() as audit:
            self.use_once()
        assert not audit.services, f"it uses {audit.services}"

    def test_it_opens_no_file_but_those_that_variables_name(self) -> None:
        """Except for `files`: other files may differ between nodes."""
        self.use_once()
        for environ in ({}, *self.environments):
            with Audit() as audit:
                self.find(environ)
            named = {os.path.abspath(value) for value in environ.values() if value}
            named.update(self.files)
            others = {path for path in audit.files if os.path.abspath(path) not in named}
            assert not others, f"it opens {sorted(others)}"

    def test_no_file_is_open_afterwards(self) -> None:
        """It closes all files that it opens."""
        self.use_once()
        found = opened(self.files_before)
        assert not found, f"it leaves open {found}"


class _RecordingEnvironment(Mapping[str, str]):
    """An environment that records the names that are read."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.asked: dict[str, None] = {}

    def __getitem__(self, name: str) -> str:
        self.asked[name] = None
        return self._environ[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._environ)

    def __len__(self) -> int:
        return len(self._environ)
