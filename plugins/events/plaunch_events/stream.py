"""Converts the notifications of a launch to events."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from plaunch import __version__, agent
from plaunch.agent import RequestKind
from plaunch.errors import (
    ExitCode,
    PlaunchError,
    RendezvousClosedError,
    SignalException,
)
from plaunch.events import Event
from plaunch.numbers import format_ranks
from plaunch.process import ChildFailedError, SignalAction
from plaunch.rendezvous import ChangeKind

from plaunch_events.schema import (
    SCHEMA,
    end_of,
    failure_metadata,
    signal_name,
    worker_metadata,
)
from plaunch_events.time_accounting import RestartAccount, TimeAccount

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plaunch.agent import EventLog, GroupInfo
    from plaunch.events import EventMetadataValue

    Metadata = dict[str, EventMetadataValue]


class EventStream:
    """The events of a log, each with the time of its notification.

    Call `take` at each notification, or whenever events are needed: the result is the same.

    Args:
        log: the notifications of a launch.
    """

    def __init__(self, log: EventLog) -> None:
        self.account = TimeAccount()
        """Where the time of the launch went, up to the last event."""
        self._log = log
        self._next = 0  # the number of the next entry
        self._wall = self._monotonic = 0.0  # the time of the current entry
        self._restart = RestartAccount()
        self._launch: agent.LaunchStarted | None = None
        self._began = self._last = self._round_began = self._workers_began = 0.0
        self._host = os.uname().nodename
        self._events: list[Event] = []
        self._group: GroupInfo
        self._ranks: dict[int, int] = {}  # global by local
        self._previous_attempt: int | None = None
        self._recorded: dict[tuple[int, int, int, str], bool] = {}  # failures; whether as the first
        self._is_requested = False  # whether a request caused the next round
        self._has_failed = False  # whether workers of the round failed by themselves
        self._last_end: agent.AgentFinished | None = None

    def take(self) -> list[Event]:
        """Return the events since the last call, or since the launch began."""
        for number, wall, monotonic, notification in self._log.since(self._next):
            self._next = number + 1
            self._wall, self._monotonic = wall, monotonic
            self._group = notification.group
            record = _RECORDS.get(type(notification))
            if record is not None:
                record(self, notification)
        taken, self._events = self._events, []
        return taken

    # --- notifications ----------------------------------------------------------------------------

    def _launch_started(self, notification: agent.LaunchStarted) -> None:
        self._launch = notification
        self._began = self._round_began = self._workers_began = self._monotonic
        self._record(
            "plaunch.launcher.started",
            plaunch=__version__,
            python=".".join(map(str, sys.version_info[:3])),
            entry_point=notification.entry_point,
            backend=notification.backend,
            endpoint=notification.endpoint,
            min_nodes=notification.min_nodes,
            max_nodes=notification.max_nodes,
            local_world_size=notification.local_world_size,
            max_restarts=notification.group.max_restarts,
        )

    def _launch_finished(self, notification: agent.LaunchFinished) -> None:
        outcome, reason = self._outcome(notification.error)
        self.account.advance(self._monotonic)
        spent: Metadata = {f"seconds_{name}": value for name, value in self.account.seconds.items()}
        spent["seconds_preloading"] = self.account.preloading
        self._record(
            "plaunch.launcher.finished",
            outcome=outcome,
            reason=reason,
            exit_code=exit_code_of(notification.error),
            **spent,
            **self._for_torchrun(),
        )

    def _before_rendezvous(self, notification: agent.BeforeRendezvous) -> None:
        del notification
        self._record("plaunch.rendezvous.begun")

    def _restart_delayed(self, notification: agent.RestartDelayed) -> None:
        self._record("plaunch.restart.delayed", seconds=notification.seconds)

    def _console_awaited(self, notification: agent.ConsoleAwaited) -> None:
        self._record("plaunch.console.awaited", waiting_bytes=notification.waiting_bytes)

    def _after_rendezvous(self, notification: agent.AfterRendezvous) -> None:
        group = notification.group
        self._ranks = {worker.local_rank: worker.global_rank for worker in group.workers}
        if self._previous_attempt is not None:
            failed = self._has_failed or group.attempt > self._previous_attempt
            self._record(
                "plaunch.restart",
                cause="failure" if failed else "request" if self._is_requested else "membership",
                reason=notification.reason,
                decision=notification.decision,
                max_restarts=group.max_restarts,
            )
        self._previous_attempt = group.attempt
        self._is_requested = self._has_failed = False
        event = self._record(
            "plaunch.rendezvous.completed",
            duration=notification.duration,
            world_size=group.workers[0].world_size if group.workers else 0,
            master_addr=group.master_addr,
            master_port=group.master_port,
            **self._for_torchrun(),
        )
        self._round_began = event.monotonic

    def _rendezvous_failed(self, notification: agent.RendezvousFailed) -> None:
        self._record(
            "plaunch.rendezvous.failed",
            duration=notification.duration,
            reason=_first_line(notification.reason),
        )

    def _preloaded(self, notification: agent.Preloaded) -> None:
        self._record(
            "plaunch.preload.completed",
            duration=notification.waited,
            modules=",".join(notification.seconds),
            seconds=sum(notification.seconds.values()),
        )

    def _workers_started(self, notification: agent.WorkersStarted) -> None:
        for worker in notification.group.workers:
            self._record(
                "plaunch.worker.started",
                **worker_metadata(worker),
                forked=worker.local_rank in notification.forked,
                **self._for_torchrun(),
            )
        duration = max(self._monotonic - self._round_began, 0.0)
        self._workers_began = self._record("plaunch.workers.started", duration=duration).monotonic
        if (seconds := self._restart.seconds) is not None:
            spent: Metadata = {f"seconds_{name}": value for name, value in seconds.items()}
            self._record("plaunch.restart.completed", **spent)

    def _worker_exit_seen(self, notification: agent.WorkerExitSeen) -> None:
        exited, failure = notification.exit, notification.exit.failure
        monotonic = self._at(exited.timestamp)
        if failure is not None and failure.has_reply:
            # It failed when it wrote its error file; its exit may have taken longer.
            self._restart.note_trouble(self._at(failure.timestamp))
        self._record(
            "plaunch.worker.exited",
            (exited.timestamp, monotonic),
            **worker_metadata(exited.worker),
            exit_code=exited.exitcode,
            signal_name=signal_name(exited.exitcode),
            stopped=exited.stopped,
            lifetime=max(monotonic - self._workers_began, 0.0),
            message=None if failure is None else end_of(failure.text),
            **self._for_torchrun(),
        )

    def _workers_failed(self, notification: agent.WorkersFailed) -> None:
        self._has_failed = True
        for rank, failure in notification.failures.items():
            is_first = rank == notification.first
            key = (notification.group.round, rank, failure.pid, failure.host)
            if self._recorded.get(key) == is_first:
                continue
            self._recorded[key] = is_first
            self._record("plaunch.failure", is_first=is_first, **failure_metadata(rank, failure))

    def _membership_changed(self, notification: agent.MembershipChanged) -> None:
        change = notification.change
        self._is_requested = self._is_requested or change.kind is ChangeKind.RESTART
        if change.kind is ChangeKind.FAILED:
            self._has_failed = True
        elif change.kind in (ChangeKind.LEFT, ChangeKind.LOST):
            self._has_failed = False  # the workers failed because the node is gone
        self._record(
            "plaunch.membership.changed",
            kind=change.kind.value,
            node=change.node,
            reason=change.reason,
        )

    def _signal_received(self, notification: agent.SignalReceived) -> None:
        self._record(
            "plaunch.signal.received",
            signum=int(notification.signum),
            signal_name=signal_name(-int(notification.signum)),
            action=_ACTIONS[notification.action],
            node=notification.node,
        )

    def _request_received(self, notification: agent.RequestReceived) -> None:
        request = notification.request
        self._is_requested = self._is_requested or request.kind is RequestKind.RESTART
        self._record(
            "plaunch.request.received",
            kind=request.kind.value,
            reason=_first_line(request.reason),
            who=request.who,
        )

    def _stopping(self, notification: agent.Stopping) -> None:
        step = notification.step
        self._record(
            "plaunch.stop.step",
            step=step.step,
            signal_name=step.signum.name,
            stop_ranks=format_ranks(self._ranks.get(rank, rank) for rank in step.ranks),
            seconds=step.seconds,
        )

    def _state_changed(self, notification: agent.StateChanged) -> None:
        self._record(
            "plaunch.state.changed", old=notification.old.value, new=notification.new.value
        )

    def _agent_finished(self, notification: agent.AgentFinished) -> None:
        self._last_end = notification

    # --- making events ----------------------------------------------------------------------------

    def _record(
        self,
        name: str,
        at: tuple[float, float] | None = None,
        /,
        **metadata: EventMetadataValue,
    ) -> Event:
        """Make an event; `at` is its time on both clocks, by default that of the notification."""
        wall, monotonic = at or (self._wall, self._monotonic)
        self._last = max(self._last, monotonic)  # events are in the order of their monotonic times
        launch = self._get_launch()
        group = self._group
        common: Metadata = {
            "run_id": launch.group.run_id,
            "attempt": group.attempt,
            "round": group.round,
            "host": self._host,
            "role": launch.group.role,
            "agent_pid": os.getpid(),
            "group_rank": group.group_rank,
            "ranks": format_ranks(self._ranks.values()),
            **metadata,
        }
        event = Event(name, SCHEMA[name].source, wall, common, self._last)
        self.account.note(event)
        self._restart.note(event)
        self._events.append(event)
        return event

    def _get_launch(self) -> agent.LaunchStarted:
        if self._launch is None:
            raise RuntimeError("the event log of a launch must begin with LaunchStarted")
        return self._launch

    def _at(self, wall: float) -> float:
        return self._monotonic - max(self._wall - wall, 0.0)

    def _for_torchrun(self) -> Metadata:
        launch = self._get_launch()
        return {
            "backend": launch.backend,
            "entry_point": launch.entry_point,
            "group_world_size": self._group.group_world_size,
            "elapsed": self._monotonic - self._began,
        }

    def _outcome(self, error: BaseException | None) -> tuple[str, str]:
        end = self._last_end
        if error is None:
            return ("succeeded", "") if end is None else (end.outcome, _first_line(end.reason))
        if isinstance(error, ChildFailedError):
            rank, failure = error.get_first_failure()
            failed = f"rank {rank}" if rank >= 0 else "the launcher"
            return "failed", f"{failed} on {failure.host} failed: {failure.headline}"
        if isinstance(error, (SignalException, KeyboardInterrupt)):
            return "signalled", _first_line(str(error) or "interrupted")
        if isinstance(error, RendezvousClosedError):
            return "closed", _first_line(str(error))
        text = str(error) if isinstance(error, PlaunchError) else repr(error)
        return "error", _first_line(text)


_RECORDS: dict[type, Callable[..., None]] = {
    agent.LaunchStarted: EventStream._launch_started,
    agent.LaunchFinished: EventStream._launch_finished,
    agent.RestartDelayed: EventStream._restart_delayed,
    agent.BeforeRendezvous: EventStream._before_rendezvous,
    agent.AfterRendezvous: EventStream._after_rendezvous,
    agent.RendezvousFailed: EventStream._rendezvous_failed,
    agent.Preloaded: EventStream._preloaded,
    agent.WorkersStarted: EventStream._workers_started,
    agent.WorkerExitSeen: EventStream._worker_exit_seen,
    agent.WorkersFailed: EventStream._workers_failed,
    agent.MembershipChanged: EventStream._membership_changed,
    agent.SignalReceived: EventStream._signal_received,
    agent.RequestReceived: EventStream._request_received,
    agent.Stopping: EventStream._stopping,
    agent.StateChanged: EventStream._state_changed,
    agent.ConsoleAwaited: EventStream._console_awaited,
    agent.AgentFinished: EventStream._agent_finished,
}
_ACTIONS: Mapping[SignalAction, str] = {
    SignalAction.STOP: "stop",
    SignalAction.NOTIFY: "notify",
    SignalAction.IGNORE: "ignored",
}


def exit_code_of(error: BaseException | None) -> int:
    """The exit code of a launcher whose launch raised `error`."""
    if error is None:
        return ExitCode.OK.value
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    if isinstance(error, SignalException):
        return 128 + error.sigval
    if isinstance(error, PlaunchError):
        return int(error.exit_code)
    return ExitCode.INTERNAL.value


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
