"""What a handler needs for one job; a program may run several jobs one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch_membership.agent_requests import AgentRequests
from plaunch_membership.arrivals import Arrivals
from plaunch_membership.host_stay import HostStay
from plaunch_membership.store_threads import StoreThreads
from plaunch_membership.texts import NodeTexts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plaunch.process import ProcessFailure

    from plaunch_membership.membership import Membership
    from plaunch_membership.options import WaitBounds
    from plaunch_membership.store import StoreAccess


class JobConnection:
    """This node's part in one job.

    Args:
        membership: this node's membership in the job.
        store: how to reach the store.
        bounds: the times that no option sets.
        hold_port: reserves a port for the workers' store, and returns its number.

    Attributes:
        threads: the threads that use the store.
        arrivals: the nodes that have arrived for a round.
        stay: how long the host of the store stays.
        requests: the requests of the agent.
        texts: the texts that nodes publish.
        has_joined: whether the agent has requested a round.
        is_unreachable: whether the agent was notified that the store does not answer.
        reported: the failures that this node has reported in the current round, by global rank.
    """

    def __init__(
        self,
        membership: Membership,
        store: StoreAccess,
        bounds: WaitBounds,
        hold_port: Callable[[], int],
    ) -> None:
        self.membership = membership
        self.threads = StoreThreads(membership, store, hold_port=hold_port, bounds=bounds)
        self.arrivals = Arrivals(membership, store.endpoint, bounds)
        self.stay = HostStay(membership, self.threads, store.has_guests, bounds.check_interval)
        self.requests = AgentRequests(membership, self.threads.writer.reports)
        self.texts = NodeTexts(membership)
        self.has_joined = False
        self.is_unreachable = False
        self.reported: Mapping[int, ProcessFailure] = {}
