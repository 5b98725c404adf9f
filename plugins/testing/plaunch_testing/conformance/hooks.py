"""What every plugin must do with hooks that are called in launches."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast

import pytest
from plaunch.agent import (
    GroupInfo,
    RequestKind,
    RunResult,
    Snapshot,
    WorkerExit,
    WorkerInfo,
    WorkerState,
)
from plaunch.doctor import DoctorContext, Finding
from plaunch.process import Held, ProcessFailure
from plaunch.testing import plugin_manager

from plaunch_testing.conformance.event_samples import NAMES, named
from plaunch_testing.conformance.plugin_suite import PluginSuite
from plaunch_testing.conformance.surroundings import within

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from plaunch.agent import Extension, Progress
    from plaunch.events import Event
    from plaunch.plugin import Implementation

    Call = tuple[str, dict[str, object]]  # a hook, and its arguments

# How long a launch and the doctor wait for one implementation, in seconds.
NOTIFY_TIMEOUT = 1.0
DOCTOR_TIMEOUT = 15.0
# How long an extension is waited for when it starts, and at the end of a launch.
START_TIMEOUT = 10.0
STOP_TIMEOUT = 2.0

_CHECKS = "plaunch_doctor_checks"
_EXTENSIONS = "plaunch_extensions"

_WORKERS = tuple(WorkerInfo(rank, 2 + rank, 2 + rank, 4, 4, pid=4242 + rank) for rank in range(2))
_FORMED = GroupInfo(
    run_id="conformance",
    role="default",
    state=WorkerState.HEALTHY,
    attempt=0,
    round=0,
    max_restarts=3,
    group_rank=1,
    group_world_size=2,
    master_addr="node0",
    master_port=29500,
    workers=_WORKERS,
)
_BEFORE = replace(
    _FORMED,
    state=WorkerState.INIT,
    group_rank=-1,
    group_world_size=-1,
    master_addr="",
    master_port=0,
    workers=tuple(WorkerInfo(rank, -1, -1, -1, -1) for rank in range(2)),
)
_ENV = {
    "RANK": "2",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_RUN_ID": "conformance",
    "PLAUNCH_ROUND": "0",
}


def _failure() -> ProcessFailure:
    failure = ProcessFailure(1, 4243, -9, "", last_lines=["caf\udce9"], host="node1")
    failure.global_rank = 3
    return failure


def _launches() -> dict[str, list[Call]]:
    """The hooks that are called in launches, from the first one to the last."""
    failure = _failure()

    def changed(old: WorkerState, new: WorkerState) -> Call:
        return "plaunch_state_changed", {"group": _FORMED, "old": old, "new": new}

    def exited(
        worker: WorkerInfo, code: int, stopped: bool, failed: ProcessFailure | None = None
    ) -> Call:
        exit_ = WorkerExit(worker, code, stopped, failed)
        return "plaunch_worker_exited", {"group": _FORMED, "exit": exit_}

    def finished(group: GroupInfo, result: RunResult | None) -> Call:
        return "plaunch_agent_finished", {"group": group, "result": result}

    before: Call = ("plaunch_before_rendezvous", {"group": _BEFORE})
    start: list[Call] = [
        before,
        ("plaunch_after_rendezvous", {"group": _FORMED}),
        ("plaunch_workers_started", {"group": _FORMED}),
        changed(WorkerState.INIT, WorkerState.HEALTHY),
    ]
    succeeds = [
        *(exited(worker, 0, False) for worker in _WORKERS),
        changed(WorkerState.HEALTHY, WorkerState.SUCCEEDED),
        finished(_FORMED, RunResult(WorkerState.SUCCEEDED, {2: None, 3: None})),
    ]
    stopped = exited(_WORKERS[0], -15, True)
    stops: Call = ("plaunch_before_stop", {"group": _FORMED, "cause": "failure"})
    fails = [
        stops,
        exited(_WORKERS[1], -9, False, failure),
        stopped,
        changed(WorkerState.HEALTHY, WorkerState.UNHEALTHY),
    ]
    result = RunResult(WorkerState.FAILED, failures={3: failure}, stopped={2: -15})
    return {
        "that succeeds": [*start, *succeeds],
        "that fails": [*start, *fails, finished(_FORMED, result)],
        "that is restarted": [*start, *fails, *start, *succeeds],
        "that is interrupted": [*start, stopped, finished(_FORMED, None)],
        "that never forms a round": [before, finished(_BEFORE, None)],
    }


class _Launch:
    """The plugin in one launch; refused, where a launch refuses it."""

    def __init__(self, thing: object) -> None:
        self._plugin = thing() if isinstance(thing, type) else thing
        self.manager = plugin_manager(self._plugin)

    def implementations(self, hook: str) -> list[Implementation]:
        """What the plugin has of a hook."""
        found = self.manager.implementations(hook)
        return [item for item in found if item.plugin.plugin is self._plugin]


class _Control:
    """What an extension is given to act with; what it asks for is not done."""

    def snapshot(self) -> Snapshot:
        """What an agent does whose workers run."""
        pids = {worker.global_rank: worker.pid or 0 for worker in _WORKERS}
        return Snapshot(WorkerState.HEALTHY, 0, 0, tuple(pids), pids)

    def held(self) -> Mapping[int, Held]:
        """Nothing."""
        return {}

    def request(self, kind: RequestKind | str, reason: str) -> None:
        """Refuse what is no request."""
        RequestKind(kind)
        assert isinstance(reason, str), f"the reason of a request is {reason!r}"

    def signal_workers(
        self, signum: signal.Signals | int, ranks: Collection[int] | None = None, reason: str = ""
    ) -> None:
        """Send nothing."""

    def report_hang(self, rank: int, text: str, *, is_final: bool = False) -> None:
        """End nothing."""

    def note_progress(self, progress: Mapping[int, Progress]) -> None:
        """Keep nothing."""

    def note_state(self, name: str, text: str) -> None:
        """Keep nothing."""

    def take_events(self) -> list[Event]:
        """Have none."""
        return []

    def say(self, text: str) -> None:
        """Say nothing."""

    def publish(self, name: str, text: str) -> None:
        """Show it to nobody."""

    def published(self, name: str, timeout: float = 1.0, *, all_nodes: bool = False) -> None:
        """Know of no other nodes."""

    def broadcast(self, name: str, text: str) -> None:
        """Let nobody hear it."""

    def listen(self, name: str, listener: Callable[[str], None]) -> None:
        """Hear nothing."""


def _given(item: Implementation, arguments: Sequence[object]) -> list[object]:
    found = cast("Iterable[object] | None", item.function(*arguments))
    return list(found or ())


class HooksConformance(PluginSuite):
    """Derive from it, say what the `plugin` is, and let pytest collect the class.

    It is the module, object or class that has the hooks. Those that offer names have suites of
    their own, by what the names give. `seconds` is how long each hook may take.
    """

    seconds: ClassVar[float] = NOTIFY_TIMEOUT

    def plugin(self) -> object:
        """The module, object or class with the hooks; to be overridden."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _extensions_end(self, _surroundings: None) -> Iterator[None]:
        self._started: list[Extension] = []
        yield
        self.end_use()

    def notify(
        self, plugin: _Launch, launch: str, *, errors: type[Exception] | None = None
    ) -> None:
        """Notify the plugin of all there is in one launch; `errors` of its hooks are ignored."""
        ignored = () if errors is None else (errors,)
        for hook, arguments in _launches()[launch]:
            for item in plugin.implementations(hook):
                wanted = [arguments[name] for name in item.argnames]
                with contextlib.suppress(*ignored):
                    self.call(hook, item.function, *wanted)

    def ask_for_env(self, plugin: _Launch) -> None:
        """Ask what the plugin adds to the environment of all workers of a node."""
        for worker in _WORKERS:
            worker_env = plugin.manager.worker_env
            self.call("plaunch_worker_env", worker_env, replace(worker, pid=None), _ENV)

    def extensions(self, plugin: _Launch) -> list[Extension]:
        """What the plugin wants to run beside an agent."""
        found: list[object] = []
        for item in plugin.implementations(_EXTENSIONS):
            arguments = [self.context()][: len(item.argnames)]
            found += within(START_TIMEOUT, _EXTENSIONS, partial(_given, item, arguments))
        return cast("list[Extension]", found)

    def start(self, extension: Extension) -> None:
        """Start an extension as a launch does; it is stopped when the test is over."""
        within(START_TIMEOUT, "start()", partial(extension.start, _Control()))
        self._started.append(extension)

    def stop(self, extension: Extension, result: RunResult | None) -> None:
        """Stop one that has started."""
        self._started.remove(extension)
        within(STOP_TIMEOUT, "stop()", partial(extension.stop, result))

    def end_use(self) -> None:
        """Stop all extensions that run; whether that goes well, other tests say."""
        for extension in [*self._started]:
            with contextlib.suppress(Exception, pytest.fail.Exception):
                self.stop(extension, None)

    def use_once(self) -> object:
        """Take part in a launch that succeeds; whether that goes well, other tests say."""
        plugin = _Launch(self.thing)
        with contextlib.suppress(Exception, pytest.fail.Exception):
            for extension in self.extensions(plugin):
                self.start(extension)
        with contextlib.suppress(Exception):
            self.ask_for_env(plugin)
        self.notify(plugin, "that succeeds", errors=Exception)
        return plugin

    @pytest.mark.parametrize("launch", _launches())
    def test_it_takes_part_in_a_launch(self, launch: str) -> None:
        """A hook that raises, or takes longer than a second, is switched off for the launch."""
        self.notify(_Launch(self.thing), launch)

    def test_it_takes_part_in_a_second_launch(self) -> None:
        """A program may launch as often as it likes; the plugin is notified from the beginning."""
        self.notify(_Launch(self.thing), "that fails")
        self.notify(_Launch(self.thing), "that succeeds")

    def test_it_adds_variables_and_changes_none(self) -> None:
        """What else it returns, or raises, ends the launch before a worker starts."""
        self.ask_for_env(_Launch(self.thing))

    def test_it_gives_the_doctor_findings(self) -> None:
        """They are `plaunch.doctor.Finding`, and come within fifteen seconds."""
        for item in _Launch(self.thing).implementations(_CHECKS):
            ask = partial(_given, item, [DoctorContext()][: len(item.argnames)])
            for finding in within(DOCTOR_TIMEOUT, _CHECKS, ask):
                assert isinstance(finding, Finding), f"it gives {finding!r}, which is not a Finding"

    def test_it_gives_extensions(self) -> None:
        """They have the methods `start`, `handle` and `stop`."""
        for extension in self.extensions(_Launch(self.thing)):
            for method in ("start", "handle", "stop"):
                assert callable(getattr(extension, method, None)), f"{extension!r} has no {method}"

    def test_its_extensions_take_part_in_a_launch(self) -> None:
        """They start within ten seconds, take every event that there is, and end within two."""
        for extension in self.extensions(_Launch(self.thing)):
            self.start(extension)
            for name in NAMES:
                self.call(f"handle({name})", extension.handle, named(name))
            self.stop(extension, RunResult(WorkerState.SUCCEEDED, {2: None, 3: None}))

    def test_its_extensions_take_part_in_a_launch_that_ends_at_once(self) -> None:
        """An error may end it before anything has happened; there is no result then."""
        for extension in self.extensions(_Launch(self.thing)):
            self.start(extension)
            self.stop(extension, None)
