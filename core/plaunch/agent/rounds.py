"""Rounds: what a node brings to them, and joining one after the other."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, NamedTuple

from plaunch import parts
from plaunch.agent import notifications
from plaunch.agent.messages import describe_round
from plaunch.agent.poller import BackgroundCall
from plaunch.agent.states import RoundFailed, RoundFormed
from plaunch.agent.worker import Worker
from plaunch.durations import bounded
from plaunch.errors import PluginError
from plaunch.rendezvous.api import RendezvousHandler, WorldRanks
from plaunch.rendezvous.job import JobRendezvous, JobRound
from plaunch.rendezvous.parameters import NodeSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch.agent.notifications import Notifier
    from plaunch.agent.peers import Peers
    from plaunch.agent.poller import Poller
    from plaunch.agent.states import Event, State
    from plaunch.agent.wait_reporter import WaitReporter
    from plaunch.agent.worker import WorkerGroup, WorkerSpec
    from plaunch.agent.workers import Workers
    from plaunch.rendezvous.api import RendezvousInfo, Store

logger = logging.getLogger("plaunch")

_LOOK = 0.5  # seconds between two looks at who is lost, while a node waits for a round
_AFTER_GRACE = 15.0  # seconds that a stop may take beyond the grace, with workers that hardly die


def longest_stop(shutdown_timeout: float, checks_timeout: float = 0.0) -> float:
    """Seconds within which a node is back for another round, in all likelihood.

    Its workers have been stopped by then, with this grace, and its health has been checked.
    """
    return bounded(shutdown_timeout) + _AFTER_GRACE + bounded(checks_timeout)


def prepare_rendezvous(spec: WorkerSpec, timeout: float) -> None:
    """Let the rendezvous of `spec` know what this node is going to run.

    `timeout` are the seconds within which it is back for another round; see `longest_stop`.

    Whoever launches has said so before, and nobody else has: an agent that is built by hand gets
    its handler from parameters that say nothing of workers.

    Raises:
        UsageError: the rendezvous was told otherwise before.
    """
    handler = spec.rdzv_handler
    if not isinstance(handler, (RendezvousHandler, JobRendezvous)):
        return  # one of torch's, which may have a method of that name and another meaning
    prepare = getattr(handler, "prepare", None)  # a `JobRendezvous` need not be derived from ours
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


class Round(NamedTuple):
    """What a rendezvous brought: the round, and this node's workers with their ranks."""

    info: RendezvousInfo
    workers: list[Worker]


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


def assign_alike(local_world_size: int, group_rank: int, group_world_size: int) -> WorldRanks:
    """Number the workers of one node if all nodes are alike, without communication."""
    first = group_rank * local_world_size
    world_size = group_world_size * local_world_size
    return WorldRanks(first, world_size, first, world_size)


def join_round(spec: WorkerSpec) -> Round:
    """Meet the other nodes and work out ranks; blocks, so it runs in a background thread.

    A rendezvous that knows what all nodes run brings the ranks along. Otherwise they are exchanged
    over the round's store; without one, and where `TORCH_ELASTIC_WORKER_IDENTICAL=1` says so, all
    nodes are taken to be alike.

    Raises:
        RendezvousError: the nodes did not meet, or their ranks cannot be told.
        PluginError: the rendezvous has no room for all of this node's workers.
    """
    info, size = spec.rdzv_handler.next_rendezvous(), spec.local_world_size
    ranks: WorldRanks | None = getattr(info, "ranks", None)  # torch's own class has none
    if ranks is not None:
        _check(spec, ranks)
    else:
        alike = os.environ.get("TORCH_ELASTIC_WORKER_IDENTICAL", "0") == "1"
        store = _agent_store(info)
        if store is None or info.world_size == 1 or alike:
            ranks = assign_alike(size, info.rank, info.world_size)
        else:
            assign_ranks = parts.load_part(parts.RANKS_THROUGH_STORE)
            ranks = assign_ranks(store, spec.role, size, info.rank, info.world_size)
    return Round(info, create_workers(ranks, size))


def _check(spec: WorkerSpec, ranks: WorldRanks) -> None:
    """Refuse ranks of a handler that has counted with fewer workers than this node runs."""
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


def _agent_store(info: RendezvousInfo) -> Store | None:
    # torch's own class has one store, and reading that costs nothing.
    return info.agent_store if hasattr(info, "agent_store") else info.store


def enter_round(group: WorkerGroup, formed: Round) -> None:
    """Give a group the place, the store and the ranks that a round has for it."""
    group.workers = formed.workers
    group.enter_round(formed.info, _agent_store(formed.info))


class Rounds:
    """Joins rounds, one after the other, and says how they went.

    Args:
        workers: their group enters each round that has formed; they may have to be prepared.
        peers: the other nodes.
        notifier: is told of it.
        poller: waits, and is woken.
        reporter: says what is waited for, and ends a first round that takes too long.
    """

    def __init__(
        self,
        workers: Workers,
        peers: Peers,
        notifier: Notifier,
        poller: Poller,
        reporter: WaitReporter,
    ) -> None:
        self._group = workers.group
        self._prepare = workers.preparation()
        self._preparing: BackgroundCall[Mapping[str, float]] | None = None
        self._formed: RoundFormed | None = None  # while workers are prepared
        self._peers = peers
        self._notifier = notifier
        self._poller = poller
        self._reporter = reporter
        self._call: BackgroundCall[Round] | None = None
        self._began = 0.0  # on the monotonic clock
        self.error: BaseException | None = None  # why the last one did not form
        self.turn = ""  # why there is another one, as far as this node knows
        self.reason = ""  # why the job has formed the last one, if it says so

    def join(self) -> None:
        """Begin to wait for the next round, in a thread that may be left to itself."""
        self._notifier.notify(notifications.BeforeRendezvous)
        self._began = time.monotonic()
        self._reporter.begin()
        spec = self._group.spec
        self._formed = self._preparing = None
        self._call = BackgroundCall("rendezvous", lambda: join_round(spec), self._poller.wake_up)

    def watch(self, state: State) -> list[Event]:
        """Wait until the round has formed, or something else happens."""
        pause = self._reporter.pause()
        self._poller.poll([], min(pause, _LOOK) if self._peers.is_job_wide else pause)
        self._peers.look_while_joining()
        if self._formed is not None:
            return self._watch_preparation(self._formed)
        call = self._call
        if call is None or not call.is_done():
            self.error = self._reporter.look(self._group.spec.rdzv_handler)
            if self.error is None:
                return []
            self._notify_failed(self.error)
            return [RoundFailed()]
        self._call = None
        self._reporter.end()
        call.join()
        if call.error is not None:
            self.error = call.error
            self._notify_failed(call.error)
            return [self._peers.event_of_failed_round(call.error)]
        formed = call.result
        enter_round(self._group, formed)
        reasons = "; ".join((self.turn, *self._peers.take_losses()))
        text = describe_round(formed.info, state, reasons)
        if text:
            logger.warning("%s", text)
        event, reason = RoundFormed(), ""
        if isinstance(formed.info, JobRound):
            event, reason = RoundFormed(formed.info.attempt, formed.info.round), formed.info.reason
        self.reason = reason
        self._notifier.notify_round(event, call.duration, reason or self.turn)
        if self._prepare is None:
            return [event]
        self._formed = event
        self._preparing = BackgroundCall("preparation", self._prepare, self._poller.wake_up)
        return []

    def _watch_preparation(self, formed: RoundFormed) -> list[Event]:
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
