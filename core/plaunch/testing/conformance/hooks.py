"""What every plugin must do whose hooks are called in each launch."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast

import pytest
from plaunch_doctor.running import CHECKS_TIMEOUT

from plaunch.agent import notifications
from plaunch.agent.worker import GroupInfo, RunResult, WorkerExit, WorkerInfo, WorkerState
from plaunch.doctor import DoctorContext, Finding
from plaunch.plugin import environment
from plaunch.plugin.telling import HOOKS, TIME_BOUND
from plaunch.process.failures.failure import ProcessFailure
from plaunch.testing.conformance.plugins import PluginSuite
from plaunch.testing.conformance.surroundings import inherited, left_alone, within
from plaunch.testing.plugins import plugin_manager

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pluggy

    from plaunch.agent.notifications import Notification

    Hooks = Callable[[str], list[pluggy.HookImpl]]

_CHECKS = "plaunch_doctor_checks"

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


def _launches() -> dict[str, list[Notification]]:
    """What plugins are told of launches, from the first moment to the last."""
    failure = _failure()
    start: list[Notification] = [
        notifications.BeforeRendezvous(_BEFORE),
        notifications.AfterRendezvous(_FORMED),
        notifications.WorkersStarted(_FORMED),
        notifications.StateChanged(_FORMED, WorkerState.INIT, WorkerState.HEALTHY),
    ]
    succeeds: list[Notification] = [
        *(notifications.WorkerExited(_FORMED, WorkerExit(worker, 0, False)) for worker in _WORKERS),
        notifications.StateChanged(_FORMED, WorkerState.HEALTHY, WorkerState.SUCCEEDED),
        notifications.AgentFinished(_FORMED, RunResult(WorkerState.SUCCEEDED, {2: None, 3: None})),
    ]
    fails: list[Notification] = [
        notifications.WorkerExited(_FORMED, WorkerExit(_WORKERS[1], -9, False, failure)),
        notifications.WorkerExited(_FORMED, WorkerExit(_WORKERS[0], -15, True)),
        notifications.StateChanged(_FORMED, WorkerState.HEALTHY, WorkerState.UNHEALTHY),
    ]
    result = RunResult(WorkerState.FAILED, failures={3: failure}, stopped={2: -15})
    return {
        "that succeeds": [*start, *succeeds],
        "that fails": [*start, *fails, notifications.AgentFinished(_FORMED, result)],
        "that is restarted": [*start, *fails, *start, *succeeds],
        "that is interrupted": [*start, *fails[1:2], notifications.AgentFinished(_FORMED, None)],
        "that never forms a round": [
            notifications.BeforeRendezvous(_BEFORE),
            notifications.AgentFinished(_BEFORE, None),
        ],
    }


def _findings(item: pluggy.HookImpl, arguments: Sequence[object]) -> list[object]:
    found = cast("Iterable[object] | None", item.function(*arguments))
    return list(found or ())


class HooksConformance(PluginSuite):
    """Derive from it, say what the `plugin` is, and let pytest collect the class.

    It is the module, object or class that has the hooks. Those that offer names have suites of
    their own, by what the names give. `seconds` is how long each hook may take.
    """

    seconds: ClassVar[float] = TIME_BOUND

    def plugin(self) -> object:
        """The module, object or class with the hooks; to be overridden."""
        raise NotImplementedError

    def hooks(self) -> Hooks:
        """What finds the implementations of a hook of the plugin, as one launch does."""
        manager = plugin_manager(self.thing)

        def implementations(hook: str) -> list[pluggy.HookImpl]:
            return [i for i in manager._implementations(hook) if i.plugin_name.startswith("code:")]

        return implementations

    def tell(self, hooks: Hooks, launch: str, *, errors: type[Exception] | None = None) -> None:
        """Tell the plugin all there is to tell of one launch; `errors` of its hooks are ignored."""
        ignored = () if errors is None else (errors,)
        for notification in _launches()[launch]:
            hook = HOOKS[type(notification)]
            for item in hooks(hook):
                arguments = [getattr(notification, name) for name in item.argnames]
                with contextlib.suppress(*ignored):
                    self.call(hook, item.function, *arguments)

    def ask_for_env(self, hooks: Hooks) -> None:
        """Ask what the plugin adds to the environment of all workers of a node."""
        for worker in _WORKERS:
            self.call(
                environment.HOOK,
                environment.contributions,
                hooks(environment.HOOK),
                repr,  # what messages call a plugin
                replace(worker, pid=None),
                _ENV,
            )

    def use_once(self) -> object:
        """Take part in a launch that succeeds; whether that goes well, other tests say."""
        hooks = self.hooks()
        with contextlib.suppress(Exception):
            self.ask_for_env(hooks)
        self.tell(hooks, "that succeeds", errors=Exception)
        return hooks

    @pytest.mark.parametrize("launch", _launches())
    def test_it_takes_part_in_a_launch(self, launch: str) -> None:
        """A hook that raises, or takes longer than a second, is switched off for the launch."""
        self.tell(self.hooks(), launch)

    def test_it_takes_part_in_a_second_launch(self) -> None:
        """A program may launch as often as it likes, and the plugin is told from the beginning."""
        self.tell(self.hooks(), "that fails")
        self.tell(self.hooks(), "that succeeds")

    def test_it_adds_variables_and_changes_none(self) -> None:
        """What else it returns, or raises, ends the launch before a worker starts."""
        self.ask_for_env(self.hooks())

    def test_it_tells_the_doctor_findings(self) -> None:
        """They are `plaunch.doctor.Finding`, and come within fifteen seconds."""
        for item in self.hooks()(_CHECKS):
            ask = partial(_findings, item, [DoctorContext()][: len(item.argnames)])
            for finding in within(CHECKS_TIMEOUT, _CHECKS, ask):
                assert isinstance(finding, Finding), f"it gives {finding!r}, which is no Finding"

    def test_it_leaves_the_process_as_it_was(self) -> None:
        """Environment, folder, signal handlers: workers get what the user has set."""
        with left_alone():
            self.use_once()

    def test_workers_inherit_nothing_of_it(self) -> None:
        """No open file of it is passed on."""
        self.use_once()
        assert not inherited(self.files_before)
