"""Rounds: what a node tells the rendezvous about itself, and joining them one after the other."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, NamedTuple

from plaunch.agent import notifications
from plaunch.agent.messages import describe_round
from plaunch.agent.poller import BackgroundCall
from plaunch.agent.states import RoundFailed, RoundFormed
from plaunch.agent.wait_reporter import describe_wait
from plaunch.agent.worker import Worker
from plaunch.durations import bounded
from plaunch.errors import PluginError
from plaunch.rendezvous.api import RendezvousHandler
from plaunch.rendezvous.backend import NodeSettings
from plaunch.rendezvous.job import JobRendezvous

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch.agent.notifications import Notifier
    from plaunch.agent.peers import Peers
    from plaunch.agent.poller import Poller
    from plaunch.agent.states import AgentEvent, State
    from plaunch.agent.wait_reporter import WaitReporter
    from plaunch.agent.worker import WorkerSpec
    from plaunch.agent.workers import Workers
    from plaunch.rendezvous.api import WorldRanks
    from plaunch.rendezvous.job import JobRound

logger = logging.getLogger("plaunch")

_LOOK = 0.5  # seconds between two checks for lost nodes, while this one waits for a round
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
        notifier: is notified of each round.
        poller: waits, and is woken.
        reporter: shows what is waited for, and ends a first round that takes too long.
    """

    def __init__(
        self,
        job: JobRendezvous,
        workers: Workers,
        peers: Peers,
        notifier: Notifier,
        poller: Poller,
        reporter: WaitReporter,
    ) -> None:
        self._job = job
        self._group = workers.group
        self._prepare = workers.preparation()
        self._preparing: BackgroundCall[Mapping[str, float]] | None = None
        self._formed: RoundFormed | None = None  # while workers are prepared
        self._peers = peers
        self._notifier = notifier
        self._poller = poller
        self._reporter = reporter
        self._call: BackgroundCall[FormedRound] | None = None
        self._began = 0.0  # on the monotonic clock
        self._delay = 0.0  # seconds by which a restart policy has delayed the round
        self.waits_for = ""  # while the round is delayed
        self.error: BaseException | None = None  # why the last round did not form
        self.reason = ""  # why the job has formed the last round; may be empty
        self.message = ""  # what of that is to be logged

    def join(self) -> None:
        """Begin to wait for the next round, in a thread that may be abandoned."""
        self._notifier.notify(notifications.BeforeRendezvous)
        self._began = time.monotonic()
        self._reporter.begin()
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
        self.waits_for = describe_wait(self._job) if delay else ""
        if delay and not self._delay:
            self._delay = delay
            self._notifier.notify(notifications.RestartDelayed, delay)

    def watch(self, state: State, logged: str) -> list[AgentEvent]:
        """Wait until the round has formed, or something else happens.

        Args:
            state: of the agent.
            logged: the last message about why the workers were stopped.
        """
        self._poller.poll([], min(self._reporter.pause(), _LOOK))
        self._peers.look_while_joining()
        if self._formed is not None:
            return self._watch_preparation(self._formed)
        self._note_delay()
        call = self._call
        if call is None or not call.is_done():
            self.error = self._reporter.look(self._job)
            if self.error is None:
                return []
            self._notify_failed(self.error)
            return [RoundFailed()]
        self._call = None
        self.waits_for = ""
        self._reporter.end()
        call.join()
        if call.error is not None:
            self.error = call.error
            self._notify_failed(call.error)
            return [self._peers.event_of_failed_round(call.error)]
        info = call.result.info
        self._group.workers = call.result.workers
        self._group.enter_round(info, info.agent_store)
        logged_now = "; ".join((logged, *self._peers.take_losses()))
        self.message = describe_round(info, state, logged_now)
        self.reason = info.reason
        event = RoundFormed(info.attempt, info.round)
        waited = max(call.duration - self._delay, 0.0)
        self._notifier.notify_round(event, waited, info.reason or logged)
        if self._prepare is None:
            return [event]
        self._formed = event
        self._preparing = BackgroundCall("preparation", self._prepare, self._poller.wake_up)
        return []

    def _watch_preparation(self, formed: RoundFormed) -> list[AgentEvent]:
        """The same, once the round has formed, until workers can be started."""
        call = self._preparing
        if call is None or not call.is_done():
            return []
        self._formed = self._preparing = None
        call.join()
        if call.error is not None:  # workers are started all the same
            logger.warning("the workers could not be prepared: %s", call.error)
        elif call.result:
            self._notifier.notify(notifications.Preloaded, call.result, call.duration)
        return [formed]

    def _notify_failed(self, error: BaseException) -> None:
        waited = time.monotonic() - self._began
        self._notifier.notify(notifications.RendezvousFailed, waited, str(error))
