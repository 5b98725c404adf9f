"""The event stream of one launch, made from the notifications of its agent."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
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

from plaunch_events.schema import SCHEMA
from plaunch_events.time_accounting import RestartAccount, TimeAccount, describe_restart
from plaunch_events.worker_facts import end_of, failure_metadata, signal_name, worker_metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from plaunch import LaunchConfig
    from plaunch.agent import GroupInfo
    from plaunch.events import EventMetadataValue

    Metadata = dict[str, EventMetadataValue]

logger = logging.getLogger("plaunch")

_WORTH_A_LINE = 1.0  # seconds of a launch that succeeded
_OUTCOMES = {"left": "not_needed"}  # outcomes that the agent calls by another word


class EventStream:
    """Converts notifications to events and calls the listeners at once, on the agent's thread.

    Call `begin` first, then the stream with each notification, and `finish` last.

    Args:
        config: the launch.
        entry_point: what is run, as users call it.
        listeners: called with every event; they must return quickly.
        clock, wall_clock: monotonic seconds, and seconds since the epoch.
        log: called with lines for users; by default it logs them.
    """

    def __init__(
        self,
        config: LaunchConfig,
        entry_point: str,
        listeners: Iterable[Callable[[Event], None]],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        log: Callable[[str], None] | None = None,
    ) -> None:
        self._log = log or logger.info
        self._account = TimeAccount()
        self._restart = RestartAccount()
        self._config = config
        self._entry_point = entry_point
        self._clock = clock
        self._wall_clock = wall_clock
        self._began = self._last = self._round_began = self._workers_began = clock()
        self._host = os.uname().nodename
        self._listeners = list(listeners)
        self._group: GroupInfo | None = None
        self._ranks: dict[int, int] = {}  # global by local
        self._previous_attempt: int | None = None
        self._recorded: dict[tuple[int, int, int, str], bool] = {}  # failures; whether as the first
        self._is_requested = False  # whether a request caused the next round
        self._has_failed = False  # whether workers of the round failed by themselves
        self._last_end: agent.AgentFinished | None = None

    def begin(self) -> None:
        """Record that the launch begins."""
        config = self._config
        self._record(
            "plaunch.launcher.started",
            plaunch=__version__,
            python=".".join(map(str, sys.version_info[:3])),
            entry_point=self._entry_point,
            backend=config.rdzv_backend,
            endpoint=config.rdzv_endpoint,
            min_nodes=config.min_nodes,
            max_nodes=config.max_nodes,
            local_world_size=config.nproc_per_node,
            max_restarts=config.max_restarts,
        )

    def __call__(self, notification: agent.Notification) -> None:
        """Record the events of a notification."""
        self._group = notification.group
        record = _RECORDS.get(type(notification))
        if record is not None:
            record(self, notification)

    def finish(self, error: BaseException | None) -> str:
        """Record the end of the launch; `error` is the exception that ended it, if any.

        Returns:
            Where its time went, in one line; empty if no round formed, or if it was short and
            succeeded.
        """
        outcome, reason = self._outcome(error)
        self._account.advance(self._clock())
        seconds = self._account.seconds
        spent: Metadata = {f"seconds_{name}": value for name, value in seconds.items()}
        spent["seconds_preloading"] = self._account.preloading
        self._record(
            "plaunch.launcher.finished",
            outcome=outcome,
            reason=reason,
            exit_code=exit_code_of(error),
            **spent,
            **self._for_torchrun(),
        )
        is_brief = outcome == "succeeded" and seconds["total"] < _WORTH_A_LINE
        return "" if self._group is None or is_brief else self._account.describe()

    # --- notifications ----------------------------------------------------------------------------

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
        duration = max(self._clock() - self._round_began, 0.0)
        self._workers_began = self._record("plaunch.workers.started", duration=duration).monotonic
        if (seconds := self._restart.seconds) is not None:
            spent: Metadata = {f"seconds_{name}": value for name, value in seconds.items()}
            self._record("plaunch.restart.completed", **spent)
            self._log("restarted in " + describe_restart(seconds))

    def _worker_ended(self, notification: agent.WorkerExitSeen) -> None:
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
        """Make an event and call the listeners; `at` is its time on both clocks, by default now."""
        wall, monotonic = (self._wall_clock(), self._clock()) if at is None else at
        self._last = max(self._last, monotonic)  # events are in the order of their monotonic times
        group = self._group
        common: Metadata = {
            "run_id": self._config.run_id,
            "attempt": 0 if group is None else group.attempt,
            "round": -1 if group is None else group.round,
            "host": self._host,
            "role": self._config.role,
            "agent_pid": os.getpid(),
            "group_rank": -1 if group is None else group.group_rank,
            "ranks": format_ranks(self._ranks.values()),
            **metadata,
        }
        event = Event(name, SCHEMA[name].source, wall, common, self._last)
        self._account.note(event)
        self._restart.note(event)
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception:
                logger.exception("a listener failed; it is not called any more")
                self._listeners.remove(listener)
        return event

    def _at(self, wall: float) -> float:
        return self._clock() - max(self._wall_clock() - wall, 0.0)

    def _for_torchrun(self) -> Metadata:
        group = self._group
        return {
            "backend": self._config.rdzv_backend,
            "entry_point": self._entry_point,
            "group_world_size": -1 if group is None else group.group_world_size,
            "elapsed": self._clock() - self._began,
        }

    def _outcome(self, error: BaseException | None) -> tuple[str, str]:
        end = self._last_end
        if error is None:
            word = "succeeded" if end is None else _OUTCOMES.get(end.outcome, "succeeded")
            return word, "" if end is None else _first_line(end.reason)
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
    agent.RestartDelayed: EventStream._restart_delayed,
    agent.BeforeRendezvous: EventStream._before_rendezvous,
    agent.AfterRendezvous: EventStream._after_rendezvous,
    agent.RendezvousFailed: EventStream._rendezvous_failed,
    agent.Preloaded: EventStream._preloaded,
    agent.WorkersStarted: EventStream._workers_started,
    agent.WorkerExitSeen: EventStream._worker_ended,
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
