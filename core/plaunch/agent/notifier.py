"""What an agent lets whoever listens know, with the group of workers as it is then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Concatenate, ParamSpec

from plaunch.agent import notifications
from plaunch.agent.rounds import Round, describe_group
from plaunch.process.failures.failure import first_failure
from plaunch.process.stopping.signals import SignalAction
from plaunch.rendezvous.api import ChangeKind, MembershipChange

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plaunch.agent.states import State
    from plaunch.agent.worker import GroupInfo, RunResult, WorkerGroup, WorkerState

Facts = ParamSpec("Facts")


class Notifier:
    """Makes notifications, and hands them on.

    Args:
        group: the agent's workers, which change while it runs.
        state: says where the agent's state machine is.
        notify: is called with every notification; None if nobody listens.
    """

    def __init__(
        self, group: WorkerGroup, state: Callable[[], State], notify: notifications.Notify | None
    ) -> None:
        self._group = group
        self._state = state
        self._notify = notify

    @property
    def run_id(self) -> str:
        """The id of the job."""
        return self._group.spec.rdzv_handler.get_run_id()

    def group_info(self, formed: Round | None = None) -> GroupInfo:
        """The group as it is; as it is about to be in the round that has `formed`."""
        return describe_group(self._group, self._state(), self.run_id, formed)

    def notify(
        self,
        notification: Callable[Concatenate[GroupInfo, Facts], notifications.Notification],
        *args: Facts.args,
        **kwargs: Facts.kwargs,
    ) -> None:
        """Hand a `notification` on, which is made of the group and of what else is given."""
        if self._notify is not None:
            self._notify(notification(self.group_info(), *args, **kwargs))

    def notify_round(self, formed: Round, waited: float, reason: str) -> None:
        """Tell that a round has formed for which this node waited so many seconds."""
        if self._notify is not None:
            self._notify(notifications.AfterRendezvous(self.group_info(formed), waited, reason))

    def notify_state(self, new: WorkerState) -> None:
        """Let the workers have another state, and tell of it if it is another one."""
        old, self._group.state = self._group.state, new
        if old is not new:
            self.notify(notifications.StateChanged, old, new)

    def notify_changes(self, changes: Sequence[MembershipChange]) -> Sequence[MembershipChange]:
        """Tell of `changes`, and return them."""
        for change in changes:
            if change.kind is ChangeKind.NOTICE:
                self.notify(
                    notifications.SignalReceived, change.signum, SignalAction.NOTIFY, change.node
                )
            else:
                self.notify(notifications.MembershipChanged, change)
        return changes

    def notify_failures(self, result: RunResult) -> None:
        """Tell which workers have failed, if any, and which one of them first."""
        failures = result.failures
        if failures:
            first = result.first_failure
            first = first_failure(failures)[0] if first is None else first
            self.notify(notifications.WorkersFailed, failures, first)
