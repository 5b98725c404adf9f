"""The conformance suite for plugins with lifecycle hooks."""

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
from plaunch.plugin import find_worker_env
from plaunch.process import Held, ProcessFailure
from plaunch.testing import plugin_manager

from plaunch_testing.conformance.event_handlers import NAMES, named
from plaunch_testing.conformance.plugin_suite import PluginSuite, within

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from plaunch.agent import Extension, Progress
    from plaunch.events import Event
    from plaunch.plugin import Implementation

    Call = tuple[str, dict[str, object]]  # a hook, and its arguments

# Seconds for one implementation, in a launch and in the doctor.
NOTIFY_TIMEOUT = 1.0
DOCTOR_TIMEOUT = 15.0
# Seconds for an extension to start, and to stop at the end of a launch.
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
    return ProcessFailure(1, 4243, -9, "", last_lines=["caf\udce9"], host="node1", global_rank=3)


def _launches() -> dict[str, list[Call]]:
    """Return the hook calls of some launches, in order."""
    failure = _failure()

    def changed(old: WorkerState, new: WorkerState) -> Call:
        return "plaunch_state_changed", {"group": _FORMED, "old": old, "new": new}

    def exited(
        worker: WorkerInfo, code: int, stopped: bool, failure: ProcessFailure | None = None
    ) -> Call:
        exit_ = WorkerExit(worker, code, stopped, failure=failure)
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


class _PluginInLaunch:
    """The plugin in one launch. Raises if the plugin manager rejects the plugin."""

    def __init__(self, thing: object) -> None:
        self._plugin = thing() if isinstance(thing, type) else thing
        self.manager = plugin_manager(self._plugin)

    def implementations(self, hook: str) -> list[Implementation]:
        """Return the plugin's implementations of a hook."""
        found = self.manager.implementations(hook)
        return [item for item in found if item.plugin.obj is self._plugin]


class _FakeControl:
    """A control for extensions that does nothing."""

    def snapshot(self) -> Snapshot:
        """Return the snapshot of an agent with running workers."""
        pids = {worker.global_rank: worker.pid or 0 for worker in _WORKERS}
        return Snapshot(WorkerState.HEALTHY, 0, 0, tuple(pids), pids)

    def held(self) -> Mapping[int, Held]:
        """Return nothing."""
        return {}

    def request(self, kind: RequestKind | str, reason: str) -> None:
        """Reject invalid requests."""
        RequestKind(kind)
        assert isinstance(reason, str), f"the reason of a request is {reason!r}"

    def signal_workers(
        self, signum: signal.Signals | int, ranks: Collection[int] | None = None, reason: str = ""
    ) -> None:
        """Do nothing."""

    def report_hang(self, rank: int, text: str, *, is_final: bool = False) -> None:
        """Do nothing."""

    def note_progress(self, progress: Mapping[int, Progress]) -> None:
        """Do nothing."""

    def note_holds(self, holds: Mapping[int, Held]) -> None:
        """Do nothing."""

    def note_state(self, name: str, text: str) -> None:
        """Do nothing."""

    def take_events(self) -> list[Event]:
        """Return no events."""
        return []

    def say(self, text: str) -> None:
        """Do nothing."""

    def publish(self, name: str, text: str) -> None:
        """Do nothing."""

    def published(self, name: str, timeout: float = 1.0, *, all_nodes: bool = False) -> None:
        """Return None: there are no other nodes."""

    def broadcast(self, name: str, text: str) -> None:
        """Do nothing."""

    def listen(self, name: str, listener: Callable[[str], None]) -> None:
        """Do nothing."""


def _given(item: Implementation, arguments: Sequence[object]) -> list[object]:
    found = cast("Iterable[object] | None", item.function(*arguments))
    return list(found or ())


class HooksConformance(PluginSuite):
    """Subclass this suite and implement `plugin`; pytest collects the subclass.

    `plugin` returns the module, object or class that has the hooks. Hooks that provide names are
    tested by the suites of the named components. `seconds` is the time limit of each hook.
    """

    seconds: ClassVar[float] = NOTIFY_TIMEOUT

    def plugin(self) -> object:
        """Return the module, object or class with the hooks; override this."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _extensions_end(self, _surroundings: None) -> Iterator[None]:
        self._started: list[Extension] = []
        yield
        self.end_use()

    def notify(
        self, plugin: _PluginInLaunch, launch: str, *, errors: type[Exception] | None = None
    ) -> None:
        """Call all hooks of one launch; ignore `errors` of hooks."""
        ignored = () if errors is None else (errors,)
        for hook, arguments in _launches()[launch]:
            for item in plugin.implementations(hook):
                wanted = [arguments[name] for name in item.argnames]
                with contextlib.suppress(*ignored):
                    self.call(hook, item.function, *wanted)

    def ask_for_env(self, plugin: _PluginInLaunch) -> None:
        """Get the variables that the plugin adds for each worker of a node."""
        for worker in _WORKERS:
            given = plugin.manager, replace(worker, pid=None), _ENV
            self.call("plaunch_worker_env", find_worker_env, *given)

    def extensions(self, plugin: _PluginInLaunch) -> list[Extension]:
        """Return the plugin's extensions."""
        found: list[object] = []
        for item in plugin.implementations(_EXTENSIONS):
            arguments = [self.context()][: len(item.argnames)]
            found += within(START_TIMEOUT, _EXTENSIONS, partial(_given, item, arguments))
        return cast("list[Extension]", found)

    def start(self, extension: Extension) -> None:
        """Start an extension as a launch does; it is stopped after the test."""
        within(START_TIMEOUT, "start()", partial(extension.start, _FakeControl()))
        self._started.append(extension)

    def stop(self, extension: Extension, result: RunResult | None) -> None:
        """Stop a started extension."""
        self._started.remove(extension)
        within(STOP_TIMEOUT, "stop()", partial(extension.stop, result))

    def end_use(self) -> None:
        """Stop all running extensions; other tests cover errors."""
        for extension in [*self._started]:
            with contextlib.suppress(Exception, pytest.fail.Exception):
                self.stop(extension, None)

    def use_once(self) -> object:
        """Take part in a launch that succeeds; other tests cover errors."""
        plugin = _PluginInLaunch(self.thing)
        with contextlib.suppress(Exception, pytest.fail.Exception):
            for extension in self.extensions(plugin):
                self.start(extension)
        with contextlib.suppress(Exception):
            self.ask_for_env(plugin)
        self.notify(plugin, "that succeeds", errors=Exception)
        return plugin

    @pytest.mark.parametrize("launch", _launches())
    def test_it_takes_part_in_a_launch(self, launch: str) -> None:
        """A launch switches off a hook that raises, or takes longer than a second."""
        self.notify(_PluginInLaunch(self.thing), launch)

    def test_it_takes_part_in_a_second_launch(self) -> None:
        """A program may launch several times; each launch calls the hooks from the beginning."""
        self.notify(_PluginInLaunch(self.thing), "that fails")
        self.notify(_PluginInLaunch(self.thing), "that succeeds")

    def test_it_adds_variables_and_changes_none(self) -> None:
        """Anything else that it returns or raises ends the launch before workers start."""
        self.ask_for_env(_PluginInLaunch(self.thing))

    def test_it_gives_the_doctor_findings(self) -> None:
        """It returns `plaunch.doctor.Finding` objects within fifteen seconds."""
        for item in _PluginInLaunch(self.thing).implementations(_CHECKS):
            ask = partial(_given, item, [DoctorContext()][: len(item.argnames)])
            for finding in within(DOCTOR_TIMEOUT, _CHECKS, ask):
                assert isinstance(finding, Finding), (
                    f"it returned {finding!r}, which is not a Finding"
                )

    def test_it_gives_extensions(self) -> None:
        """Extensions have the methods `start`, `handle` and `stop`."""
        for extension in self.extensions(_PluginInLaunch(self.thing)):
            for method in ("start", "handle", "stop"):
                assert callable(getattr(extension, method, None)), f"{extension!r} has no {method}"

    def test_its_extensions_take_part_in_a_launch(self) -> None:
        """They start within ten seconds, handle every event, and stop within two."""
        for extension in self.extensions(_PluginInLaunch(self.thing)):
            self.start(extension)
            for name in NAMES:
                self.call(f"handle({name})", extension.handle, named(name))
            self.stop(extension, RunResult(WorkerState.SUCCEEDED, {2: None, 3: None}))

    def test_its_extensions_take_part_in_a_launch_that_ends_at_once(self) -> None:
        """An error may end a launch before any event, without a result."""
        for extension in self.extensions(_PluginInLaunch(self.thing)):
            self.start(extension)
            self.stop(extension, None)
