"""What every scheduler must do."""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar
from unittest import mock

import pytest
from plaunch.scheduling import Allocation

from plaunch_testing.conformance.plugin_suite import PluginSuite
from plaunch_testing.conformance.surroundings import Audit, opened, usage_errors

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
    """Derive from it, say what the `plugin` is, and let pytest collect the class.

    `environments` are what launchers have been started with, as examples: each of them must give
    an `Allocation`. Without any, only the answers to garbage are looked at. `files` are the paths
    of files that the scheduler itself writes on each node, for the launchers of it to read.
    """

    environments: ClassVar[Sequence[Mapping[str, str]]] = ()
    files: ClassVar[Sequence[str]] = ()

    def plugin(self) -> Scheduler:
        """What the scheduler's name gives; to be overridden."""
        raise NotImplementedError

    def find(self, environ: Mapping[str, str]) -> Allocation | None:
        """Ask it; None if it refuses with a `UsageError`."""
        with usage_errors():
            answer: Allocation = self.call("the answer", self.thing, environ)
            return answer
        return None

    def use_once(self) -> object:
        """Ask it once with every environment that there is."""
        return [self.find(environ) for environ in ({}, *self.environments)]

    def allocations(self) -> list[tuple[Mapping[str, str], Allocation]]:
        """The environments that are an allocation, and which."""
        found = [(environ, self.find(environ)) for environ in ({}, *self.environments)]
        return [(environ, one) for environ, one in found if isinstance(one, Allocation)]

    def test_it_answers_to_its_own_environments(self) -> None:
        """With an `Allocation`."""
        if not self.environments:
            pytest.skip("no environments are given")
        for environ in self.environments:
            answer = self.call("the answer", self.thing, environ)
            assert isinstance(answer, Allocation), f"of {dict(environ)!r} it says {answer!r}"

    def test_it_answers_to_an_empty_environment(self) -> None:
        """Nobody's job: a `UsageError`, or an `Allocation` that says little."""
        answer = self.find({})
        assert answer is None or isinstance(answer, Allocation), f"it says {answer!r}"

    def test_it_survives_garbage(self) -> None:
        """In every variable that it reads: a `UsageError` or an `Allocation`, and nothing else."""
        dice = random.Random(0)  # noqa: S311 - for the same garbage every time
        known: dict[str, None] = {}
        starts = [{}, *(dict(environ) for environ in self.environments)]
        for number in range(_TRIES):
            environ = dict(starts[number % len(starts)])
            for name in known:
                if dice.random() < 0.5:
                    environ[name] = dice.choice(_GARBAGE)
            if environ and dice.random() < 0.2:
                del environ[dice.choice(sorted(environ))]
            watched = _Watched(environ)
            try:
                answer = self.find(watched)
            except Exception as error:  # noqa: BLE001 - said with what has led to it
                read = {name: environ[name][:80] for name in watched.asked if name in environ}
                pytest.fail(f"of {read!r} it raises {error!r}")
            assert answer is None or isinstance(answer, Allocation), f"it says {answer!r}"
            known.update(dict.fromkeys(watched.asked))

    def test_it_says_the_same_again(self) -> None:
        """And to another launcher with the same variables: all nodes must agree."""
        for environ, first in self.allocations():
            assert self.find(dict(environ)) == first

    def test_it_explains_what_it_sets_and_what_it_does_not(self) -> None:
        """`sources` are of fields that are set, `missing` of fields that are not."""
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
                    f"missing names {name!r}, which is set, or no field"
                )

    def test_its_answer_is_plain_data(self) -> None:
        """Which can be pickled and shown."""
        for _, answer in self.allocations():
            assert pickle.loads(pickle.dumps(answer)) == answer  # noqa: S301 - just written

    def test_it_reads_the_environment_that_it_is_given(self) -> None:
        """And not that of the process."""
        for environ, answer in self.allocations():
            others = {**os.environ, **dict.fromkeys(environ, "1"), "RANK": "1"}
            with mock.patch.dict(os.environ, others):
                assert self.find(environ) == answer

    def test_it_asks_no_service(self) -> None:
        """No network and no program: an answer must be there at once, on all nodes."""
        self.use_once()  # what it imports is loaded now
        with Audit() as audit:
            self.use_once()
        assert not audit.services, f"it asks {audit.services}"

    def test_it_opens_no_file_but_those_that_variables_name(self) -> None:
        """And `files`: whatever else is on this node may be another thing on the next one."""
        self.use_once()
        for environ in ({}, *self.environments):
            with Audit() as audit:
                self.find(environ)
            named = {os.path.abspath(value) for value in environ.values() if value}
            named.update(self.files)
            others = {path for path in audit.files if os.path.abspath(path) not in named}
            assert not others, f"it opens {sorted(others)}"

    def test_no_file_is_open_afterwards(self) -> None:
        """Whatever it has opened, it closes."""
        self.use_once()
        found = opened(self.files_before)
        assert not found, f"it leaves open {found}"


class _Watched(Mapping[str, str]):
    """An environment that notes what it is asked for."""

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
