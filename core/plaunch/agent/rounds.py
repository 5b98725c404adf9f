"""Preparing a rendezvous, joining its rounds one after the other, and leaving it."""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from plaunch.agent import notifications
from plaunch.agent.messages import describe_round
from plaunch.agent.poller import QUIET_INTERVAL, BackgroundCall, LoopWatchdog, Poller
from plaunch.agent.signals import SignalInbox
from plaunch.agent.states import NodeHealthy, NodeUnhealthy, RoundFailed, RoundFormed
from plaunch.agent.worker import Worker
from plaunch.durations import bounded
from plaunch.errors import (
    NodeExcludedError,
    PlaunchError,
    PluginError,
    ThreadStartError,
    text_of_error,
)
from plaunch.process.marks import owns_process
from plaunch.process.signals import SignalAction, is_same_request
from plaunch.rendezvous.api import RendezvousHandler
from plaunch.rendezvous.backend import NodeSettings
from plaunch.rendezvous.job import JobRendezvous

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plaunch.agent.messages import StopReason, WaitReporter
    from plaunch.agent.notifier import Notifier
    from plaunch.agent.peers import Peers
    from plaunch.agent.results import Results
    from plaunch.agent.states import AgentEvent, State
    from plaunch.agent.worker import WorkerSpec
    from plaunch.agent.workers import Workers
    from plaunch.health import HealthChecks
    from plaunch.process.signals import SignalPolicy
    from plaunch.rendezvous.api import WorldRanks
    from plaunch.rendezvous.job import JobRound

logger = logging.getLogger("plaunch")

_CHECK_INTERVAL = 0.5  # seconds between two checks for lost nodes, while this one waits for a round
_LEAVE_WAIT = 2.0  # seconds for a `shutdown` that is in progress to return after `leave`
_AFTER_GRACE = 15.0  # seconds that a stop may take beyond the grace if workers resist SIGKILL


def longest_stop(shutdown_timeout: float, checks_timeout: float = 0.0) -> float:
    """Seconds after which a node has normally stopped its workers and can rejoin.

    Args:
        shutdown_timeout: the grace of the stop, in seconds.
        checks_timeout: what health checks may take, in seconds.
    """
    return bounded(shutdown_timeout) + _AFTER_GRACE + bounded(checks_timeout)


def prepare_rendezvous(spec: WorkerSpec, timeout: float) -> None:
    """Pass what this node runs to its rendezvous handler (`RendezvousHandler.prepare`).

    Args:
        spec: what this node runs.
        timeout: seconds until it can rejoin after a failure; see `longest_stop`.

    Raises:
        UsageError: the handler was given something else before.
    """
    handler = spec.rdzv_handler
    if not isinstance(handler, (RendezvousHandler, JobRendezvous)):
        return  # torch's handlers may have a method of that name with another meaning
    prepare = getattr(handler, "prepare", None)  # a `JobRendezvous` may derive from another class
    if prepare is None:
        return
    prepare(
        NodeSettings(
            role=spec.role,
            local_world_size=spec.local_world_size,
            max_restarts=spec.max_restarts,
            stop_timeout=timeout,
            local_addr=spec.local_addr,
        )
    )


class FormedRound(NamedTuple):
    """A round that the rendezvous has formed, and this node's workers with their ranks."""

    info: JobRound
    workers: list[Worker]


def join_round(job: JobRendezvous, spec: WorkerSpec) -> FormedRound:
    """Join the next round of a job; blocks, so it runs in a background thread.

    Raises:
        RendezvousError: the nodes did not meet, or this node's ranks cannot be found out.
        PluginError: the rendezvous has no room for all of this node's workers.
    """
    info = job.next_rendezvous()
    _check(spec, info.ranks)
    return FormedRound(info, create_workers(info.ranks, spec.local_world_size))


def create_workers(ranks: WorldRanks, local_world_size: int) -> list[Worker]:
    """The workers of one node, with their ranks."""
    return [
        Worker(
            local_rank=local_rank,
            global_rank=ranks.first_global + local_rank,
            role_rank=ranks.first_role + local_rank,
            world_size=ranks.world_size,
            role_world_size=ranks.role_world_size,
        )
        for local_rank in range(local_world_size)
    ]


def _check(spec: WorkerSpec, ranks: WorldRanks) -> None:
    """Refuse ranks of a rendezvous that counts fewer workers than this node runs."""
    size = spec.local_world_size
    if (
        ranks.first_global + size <= ranks.world_size
        and ranks.first_role + size <= ranks.role_world_size
    ):
        return
    raise PluginError(
        f"rendezvous backend {spec.rdzv_handler.get_backend()!r} gives the {size} workers of this "
        f"node, of role {spec.role!r}, ranks that its world does not have: {ranks}. It was "
        "created for other workers, and ignores those of the WorkerSpec "
        "(RendezvousHandler.prepare)"
    )


class RoundJoiner:
    """Joins one round after the other.

    Args:
        job: the rendezvous.
        workers: their group enters each round that has formed; they may have to be prepared.
        peers: the other nodes.
        results: get why a round did not form.
        notifier: is notified of each round.
        poller: waits, and is woken.
        wait_reporter: shows what is waited for, and ends a first round that takes too long.
    """

    def __init__(
        self,
        job: JobRendezvous,
        workers: Workers,
        peers: Peers,
        results: Results,
        notifier: Notifier,
        poller: Poller,
        wait_reporter: WaitReporter,
    ) -> None:
        self._job = job
        self._group = workers.group
        self._prepare = workers.preparation()
        self._preparing: BackgroundCall[Mapping[str, float]] | None = None
        self._formed: RoundFormed | None = None  # while workers are prepared
        self._reason = ""  # what has led to that round; may be empty
        self._peers = peers
        self._results = results
        self._notifier = notifier
        self._poller = poller
        self._wait_reporter = wait_reporter
        self._call: BackgroundCall[FormedRound] | None = None
        self._began = 0.0  # on the monotonic clock
        self._delay = 0.0  # seconds by which a restart policy has delayed the round
        self.waits_for = ""  # while the round is delayed

    def join(self) -> None:
        """Begin to wait for the next round, in a thread that may be abandoned."""
        self._notifier.notify(notifications.BeforeRendezvous)
        self._began = time.monotonic()
        self._wait_reporter.begin()
        self._formed = self._preparing = None
        self._delay = 0.0
        self._note_delay()
        job, spec = self._job, self._group.spec
        self._call = BackgroundCall(
            "rendezvous", lambda: join_round(job, spec), self._poller.wake_up
        )

    def _note_delay(self) -> None:
        """Notify listeners, once, that a restart policy has delayed the round."""
        delay = self._job.restart_delay()
        self.waits_for = self._wait_reporter.describe(self._job) if delay else ""
        if delay and not self._delay:
            self._delay = delay
            self._notifier.notify(notifications.RestartDelayed, delay)

    def watch(self, state: State, logged: StopReason) -> list[AgentEvent]:
        """Wait until the round has formed and workers can be started, or something else happens.

        Args:
            state: of the agent.
            logged: what has been logged about why the workers were stopped last.
        """
        self._poller.poll([], min(self._wait_reporter.pause(), _CHECK_INTERVAL))
        self._peers.log_losses()
        if self._formed is None:
            self._note_delay()
            call = self._call
            if call is None or not call.is_done():
                error = self._wait_reporter.report(self._job)
                return [] if error is None else [self._fail(error, RoundFailed())]
            self._call = None
            self.waits_for = ""
            self._wait_reporter.end()
            call.join()
            if call.error is not None:
                return [self._fail(call.error, self._peers.event_of_failed_round(call.error))]
            self._formed = self._enter(call.result, call.duration, state, logged)
        return self._watch_preparation(self._formed)

    def _enter(
        self, formed: FormedRound, duration: float, state: State, logged: StopReason
    ) -> RoundFormed:
        """Enter the round that has formed after `duration` seconds; prepare the workers."""
        info = formed.info
        self._group.workers = formed.workers
        self._group.enter_round(info, info.agent_store)
        losses = self._peers.take_losses()
        known = replace(logged, facts=(*logged.facts, *losses))
        self._reason = info.reason
        event = RoundFormed(info.attempt, info.round, describe_round(info, state, known))
        waited = max(duration - self._delay, 0.0)
        self._notifier.notify_round(event, waited, info.reason or logged.text, info.decision)
        if self._prepare is not None:
            self._preparing = BackgroundCall("preparation", self._prepare, self._poller.wake_up)
        return event

    def _watch_preparation(self, formed: RoundFormed) -> list[AgentEvent]:
        """The event of the round, once workers can be started."""
        call = self._preparing
        if call is not None:
            if not call.is_done():
                return []
            call.join()
            if call.error is not None:  # workers are started all the same
                logger.warning("the workers could not be prepared: %s", call.error)
            elif call.result:
                self._notifier.notify(notifications.Preloaded, call.result, call.duration)
        self._formed = self._preparing = None
        self._results.begin_round(formed.attempt, self._reason)
        return [formed]

    def _fail(self, error: BaseException, event: AgentEvent) -> AgentEvent:
        waited = time.monotonic() - self._began
        self._notifier.notify(notifications.RendezvousFailed, waited, str(error))
        self._results.note_error(error)
        return event


class Preconditions:
    """Runs the health checks of a node, and follows the other nodes meanwhile.

    Args:
        checks: the health checks, or None.
        peers: the other nodes.
        results: get which check has failed.
        poller: waits, and is woken.
    """

    def __init__(
        self, checks: HealthChecks | None, peers: Peers, results: Results, poller: Poller
    ) -> None:
        self._checks = checks
        self._peers = peers
        self._results = results
        self._poller = poller
        self._is_member = False  # whether this node has been in a round

    def begin(self, *, is_member: bool) -> None:
        """Begin all checks; `is_member` is whether this node has been in a round."""
        self._is_member = is_member
        if self._checks is not None:
            self._checks.begin(self._poller.wake_up.wake, is_restart=is_member)

    def watch(self) -> list[AgentEvent]:
        """Wait until they have ended, or something else happens."""
        checks, is_member = self._checks, self._is_member
        if checks is None:
            return [NodeHealthy()]
        remaining = checks.remaining()
        if remaining > 0:
            # Before its first round, this node knows nothing of others.
            fds = self._peers.fds() if is_member else ()
            self._poller.poll(fds, min(remaining, QUIET_INTERVAL))
            return self._peers.check_while_stopping(is_clearing=False) if is_member else []
        verdict = checks.verdict()
        if not verdict:
            return [NodeHealthy()]
        self._results.note_error(NodeExcludedError(verdict))
        if is_member:
            self._peers.exclude(verdict)
        return [NodeUnhealthy()]


def release_rendezvous(release: Callable[[], bool]) -> None:
    """Call what shuts the rendezvous down, or leaves it.

    Raises:
        SystemExit: it has been raised in another program's process, as that may wish.
    """
    try:
        if release():
            return
        why = ""
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and not owns_process():
            raise
        text = text_of_error(error)
        is_named = isinstance(error, (OSError, PlaunchError))
        why = f": {text}" if is_named else f": {type(error).__name__}: {text}"
    logger.warning("the rendezvous could not be shut down cleanly%s", why)


def shut_down(
    handler: RendezvousHandler, policy: SignalPolicy, asked_at: float = -math.inf
) -> bool:
    """Shut `handler` down, which may wait for other nodes; a stop signal makes it leave at once.

    Args:
        handler: the rendezvous.
        policy: what signals mean.
        asked_at: when a stop signal arrived that the agent has handled (`ReceivedSignal.at`);
            one that belongs to the same request is ignored.

    Returns:
        What the handler returns: whether all went well.
    """
    on_main_thread = threading.current_thread() is threading.main_thread()
    if not isinstance(handler, JobRendezvous) or not on_main_thread:
        return handler.shutdown()
    poller = Poller(LoopWatchdog())
    try:
        with SignalInbox(policy, poller.wake_up) as inbox:
            try:
                call = BackgroundCall("shutdown", handler.shutdown, poller.wake_up)
            except ThreadStartError:
                return handler.shutdown()  # without signals, but the other nodes are notified
            while not call.is_done():
                poller.poll((), None)
                for received in inbox.take():
                    is_new = not is_same_request(received.signum, received.at - asked_at)
                    if is_new and received.action is SignalAction.STOP:
                        logger.warning(
                            "%s received; this node leaves the job", received.signum.name
                        )
                        left = handler.leave()
                        # A process that ends with a thread in a store's library may crash there.
                        call.join(_LEAVE_WAIT)
                        return left
            call.join()
            if call.error is not None:
                raise call.error
            return call.result
    finally:
        poller.close()
