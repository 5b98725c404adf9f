"""The other nodes, as far as the rendezvous lets an agent know of them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from plaunch.agent.poller import BackgroundCall
from plaunch.agent.states import (
    Event,
    NodesChanged,
    Outcome,
    PeersFinished,
    RendezvousClosed,
    RoundFailed,
)
from plaunch.errors import RendezvousClosedError, RendezvousGracefulExitError
from plaunch.rendezvous.api import ChangeKind, MembershipChange, ObservableRendezvous

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Mapping, Sequence
    from typing import Protocol

    from plaunch.agent.notifications import Notifier
    from plaunch.agent.poller import Poller
    from plaunch.agent.states import Again, State
    from plaunch.agent.worker import RunResult
    from plaunch.process.failures.failure import ProcessFailure
    from plaunch.rendezvous.api import RendezvousHandler

    class LookAtOwn(Protocol):
        """Looks, for a moment, whether own workers have failed; after a loss, by themselves."""

        def __call__(self, *, is_loss: bool) -> list[Event]:
            """What has ended their work."""


logger = logging.getLogger("plaunch")

# Seconds between two looks where everything wakes the loop by itself. Ten looks a second at nothing
# would be most of what a launcher costs; were a wake-up lost, the job would be late, but not stuck.
QUIET_INTERVAL = 2.0


class Peers:
    """The nodes behind a rendezvous that has to be asked how many of them wait.

    What only a rendezvous that knows the whole job can do, does nothing here.

    Args:
        handler: the rendezvous.
        notifier: is told of changes.
        poller: waits, and is woken.
    """

    is_job_wide = False
    wakes = False  # whether it makes a descriptor readable, and need not be asked
    interval = QUIET_INTERVAL  # seconds between two looks if nothing else happens

    def __init__(self, handler: RendezvousHandler, notifier: Notifier, poller: Poller) -> None:
        self.reason = ""  # why the agent changes its course, or the rendezvous was closed
        self._handler = handler
        self._notifier = notifier
        self._poller = poller
        self._call: BackgroundCall[None] | None = None

    # --- what happens to them ---------------------------------------------------------------------

    def fds(self) -> list[int]:
        """Descriptors that are readable while there is news of them."""
        return []

    def look(self, look_at_own: LookAtOwn) -> list[Event]:
        """What has happened to them while own workers run.

        `look_at_own` looks, for a moment, whether own workers have failed as well.
        """
        del look_at_own
        with self._poller.alive.calling():
            waiting = self._handler.num_nodes_waiting()
        if waiting <= 0:
            return []
        self._notifier.notify_changes([MembershipChange(ChangeKind.ARRIVED)])
        return [NodesChanged()]

    def look_while_stopping(self, *, is_clearing: bool) -> list[Event]:
        """The same while own workers are stopped, or what they have left behind is."""
        del is_clearing
        return []

    def look_while_joining(self) -> None:
        """The same while this node waits for a round."""

    def take_losses(self) -> list[str]:
        """The messages about lost nodes that were logged since the last call."""
        return []

    def event_of_failed_round(self, error: BaseException) -> Event:
        """What it means that a round did not form."""
        return RoundFailed(isinstance(error, RendezvousGracefulExitError))

    # --- the wait for them, when own workers have succeeded ---------------------------------------

    def begin_wait(self, timeout: float, wait: Callable[[float], None]) -> None:
        """Wait for them to succeed as well, at most `timeout` seconds, by means of `wait`."""
        self._call = BackgroundCall("peers", lambda: wait(timeout), self._poller.wake_up)

    def watch(self, fds: Sequence[int], due: float | None) -> list[Event]:
        """Go on with that, until something happens; also to `fds`, or in `due` seconds."""
        self._poller.poll(fds, due)
        call = self._call
        if call is None or not call.is_done():
            return []
        self._call = None
        call.join()
        if call.error is not None:
            logger.warning("waiting for the other nodes failed: %s", call.error)
        return [PeersFinished()]

    # --- what they are told, where the whole job is known -----------------------------------------

    def note_succeeded(self, ended: Mapping[int, float]) -> None:
        """Record when own workers ended that have succeeded, by global rank."""

    def note_failure(self, result: RunResult) -> None:
        """Know that own workers failed by themselves; `report_failures` follows."""

    def report_failures(
        self, failures: Mapping[int, ProcessFailure], *, is_final: bool = False
    ) -> None:
        """Tell which own workers failed by themselves, by global rank; once a round.

        `is_final` says that no restart is to follow.
        """

    def report_error(self, error: BaseException, before: Mapping[int, ProcessFailure]) -> None:
        """Tell that this node failed itself, after the failures of workers `before`."""

    def announce(self, then: Again | Outcome, state: State) -> None:
        """Tell what this node is about to do, where others should know."""

    def exclude(self, reason: str) -> None:
        """Tell that the job goes on without this node, and why."""

    def send_notice(self, signum: signal.Signals) -> None:
        """Pass a signal on."""

    # --- how it ends ------------------------------------------------------------------------------

    def has_verdict(self) -> bool:
        """Whether the job has ended, and this node knows how."""
        return False

    def awaits_verdict(self) -> bool:
        """Whether the job has yet to act on an error of this node, or a wish for its end."""
        return False

    def take_changes(self) -> Sequence[MembershipChange]:
        """All changes since the last call; the listener is notified of them."""
        return ()

    def failed_result(self, own: RunResult) -> RunResult:
        """The result of a run that has failed."""
        return own

    def error_of(self, outcome: Outcome) -> Exception:
        """The error of an end that was none of this node's own making."""
        if outcome is not Outcome.CLOSED:
            return RuntimeError(f"the agent ended with {outcome.value!r} but without an error")
        run_id = self._handler.get_run_id()
        return RendezvousClosedError(f"the rendezvous of job {run_id!r} was closed: {self.reason}")


class ObservedPeers(Peers):
    """The nodes behind a rendezvous that says by itself when one comes or goes."""

    wakes = True

    def __init__(
        self,
        handler: RendezvousHandler,
        notifier: Notifier,
        poller: Poller,
        observable: ObservableRendezvous,
    ) -> None:
        super().__init__(handler, notifier, poller)
        self._observable = observable

    def fds(self) -> list[int]:
        """The descriptor of the rendezvous, if it has one."""
        fd = self._observable.fileno()
        return [fd] if fd >= 0 else []

    def take_changes(self) -> Sequence[MembershipChange]:
        """All changes since the last call; the listener is notified of them."""
        return self._notifier.notify_changes(list(self._observable.changes()))

    def look(self, look_at_own: LookAtOwn) -> list[Event]:
        """What has happened to them while own workers run."""
        del look_at_own
        events: list[Event] = []
        for change in self.take_changes():
            logger.info("node %s %s: %s", change.node, change.kind.value, change.reason)
            if change.kind is ChangeKind.CLOSED:
                self.reason = change.reason
                events.append(RendezvousClosed())
            else:
                events.append(NodesChanged(change.kind is ChangeKind.LOST))
        return events

    def look_while_stopping(self, *, is_clearing: bool) -> list[Event]:
        """The same while own workers are stopped."""
        del is_clearing
        return self.look(lambda *, is_loss: [])
