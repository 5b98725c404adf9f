"""Makes the notifications of a launch, and keeps the log of them."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Concatenate, NamedTuple, ParamSpec

from plaunch.agent import notifications
from plaunch.agent.worker import GroupInfo
from plaunch.process.failure import first_failure
from plaunch.process.signals import SignalAction
from plaunch.rendezvous.api import ChangeKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from plaunch.agent.notifications import Notification, Notify
    from plaunch.agent.states import RoundFormed
    from plaunch.agent.status import AgentStatus
    from plaunch.agent.worker import RunResult, WorkerGroup, WorkerState
    from plaunch.process.components import WorkerExit
    from plaunch.process.stopping.stop_sequence import StopStep
    from plaunch.rendezvous.api import MembershipChange

Facts = ParamSpec("Facts")


class Notifier:
    """Creates notifications, and passes them to the listener.

    Args:
        group: the agent's workers, which change while it runs.
        status: of the agent.
        notify: is called with every notification; None if there is no listener.
    """

    def __init__(self, group: WorkerGroup, status: AgentStatus, notify: Notify | None) -> None:
        self._group = group
        self._status = status
        self._notify = notify

    @property
    def run_id(self) -> str:
        """The id of the job."""
        return self._group.spec.rdzv_handler.get_run_id()

    def group_info(self, formed: RoundFormed | None = None) -> GroupInfo:
        """The group now, or in the round that has just `formed`."""
        group, state = self._group, self._status.state
        attempt, number = state.attempt, state.round
        if formed is not None:
            attempt, number = formed.attempt, formed.number_after(state)
        return GroupInfo(
            run_id=self.run_id,
            role=group.spec.role,
            state=group.state,
            attempt=attempt,
            round=number,
            max_restarts=group.spec.max_restarts,
            group_rank=-1 if group.group_rank is None else group.group_rank,
            group_world_size=-1 if group.group_world_size is None else group.group_world_size,
            master_addr=group.master_addr or "",
            master_port=group.master_port or 0,
            workers=group.describe_workers(),
        )

    def notify(
        self,
        notification: Callable[Concatenate[GroupInfo, Facts], Notification],
        *args: Facts.args,
        **kwargs: Facts.kwargs,
    ) -> None:
        """Create a `notification` from the group and the arguments, and pass it to the listener."""
        if self._notify is not None:
            self._notify(notification(self.group_info(), *args, **kwargs))

    def notify_round(self, formed: RoundFormed, waited: float, reason: str, decision: str) -> None:
        """Notify that a round has formed, for which this node `waited` so many seconds."""
        if self._notify is not None:
            group = self.group_info(formed)
            self._notify(notifications.AfterRendezvous(group, waited, reason, decision))

    def notify_state(self, new: WorkerState) -> None:
        """Set the state of the worker group; notify if it has changed."""
        old, self._group.state = self._group.state, new
        if old is not new:
            self.notify(notifications.StateChanged, old, new)

    def notify_changes(self, changes: Sequence[MembershipChange]) -> Sequence[MembershipChange]:
        """Notify of each of `changes`, and return them."""
        for change in changes:
            if change.kind is ChangeKind.NOTICE:
                self.notify(
                    notifications.SignalReceived, change.signum, SignalAction.NOTIFY, change.node
                )
            elif change.kind is not ChangeKind.ENDING:  # the membership stays the same
                self.notify(notifications.MembershipChanged, change)
        return changes

    def notify_failures(self, result: RunResult) -> None:
        """Notify which workers have failed, if any, and which of them first."""
        failures = result.failures
        if failures:
            first = result.first_failure
            first = first_failure(failures)[0] if first is None else first
            self.notify(notifications.WorkersFailed, failures, first)


class ExitReporter:
    """Observes the context of one round, and notifies the agent's listeners.

    Args:
        notifier: notifies them.
    """

    def __init__(self, notifier: Notifier) -> None:
        self.ended: frozenset[int] = frozenset()  # local ranks
        self.succeeded: dict[int, float] = {}  # when, by global rank, in seconds since the epoch
        self._notifier = notifier

    def on_exit(self, exit: WorkerExit) -> None:
        """Record the exit of a worker that has just ended, and notify the listeners."""
        self.ended |= {exit.local_rank}
        rank = exit.worker.global_rank
        if exit.succeeded:
            # A new dictionary, since other threads read the old one.
            self.succeeded = {**self.succeeded, rank: exit.timestamp}
        self._notifier.notify(notifications.WorkerExitSeen, exit)

    def report(self, exits: Iterable[WorkerExit]) -> None:
        """Notify the listeners of exits that the agent has dealt with."""
        for each in exits:
            self._notifier.notify(notifications.WorkerExited, each)

    def on_stop_step(self, step: StopStep) -> None:
        """Notify the listeners of a step of the stop sequence."""
        self._notifier.notify(notifications.Stopping, step)


class LogEntry(NamedTuple):
    """A notification in an `EventLog`.

    Args:
        number: counts the notifications of the log, from 0.
        wall: the time, in seconds since the epoch.
        monotonic: the time, in seconds of the monotonic clock.
        notification: what happened.
    """

    number: int
    wall: float
    monotonic: float
    notification: Notification


class EventLog:
    """The notifications of one launch, in order, with their times.

    The events that handlers and extensions get are made from it (`plaunch_events.EventStream`).
    A listener is called with each notification as it is added; a late reader calls `since` when it
    likes. The log keeps the first and the last notifications.

    Args:
        kept: how many of the last ones it keeps.
        clock, wall_clock: monotonic seconds, and seconds since the epoch.
    """

    def __init__(
        self,
        kept: int = 5000,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._count = 0
        self._first: LogEntry | None = None
        self._last: deque[LogEntry] = deque(maxlen=kept)
        self._listeners: list[Notify] = []

    def subscribe(self, listener: Notify) -> None:
        """Call `listener` with each further notification, after the earlier listeners.

        It must not raise, and returns quickly: it runs on the agent's thread.
        """
        self._listeners.append(listener)

    def add(self, notification: Notification) -> None:
        """Add a notification, and call the listeners with it."""
        with self._lock:
            entry = LogEntry(self._count, self._wall_clock(), self._clock(), notification)
            self._count += 1
            self._first = self._first or entry
            self._last.append(entry)
        for listener in self._listeners:
            listener(notification)

    def since(self, number: int) -> list[LogEntry]:
        """Return the entries from `number` on, without those that are not kept. Thread-safe."""
        with self._lock:
            new = min(self._count - number, len(self._last))
            entries = [self._last[-back] for back in range(new, 0, -1)]
            if self._first is not None and number == 0 and entries[0].number > 0:
                entries.insert(0, self._first)
        return entries

    def finish(self, error: BaseException | None) -> None:
        """Add the last notification; the log must have a first one."""
        if self._last:
            self.add(notifications.LaunchFinished(self._last[-1].notification.group, error))
