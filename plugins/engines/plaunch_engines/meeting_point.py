"""Where the agents of a job meet: the endpoint, and who hosts the rendezvous store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch_engines.store_host import StoreOffer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plaunch_engines.agents import ConnectedNode
    from plaunch_engines.plan import JobPlan


class MeetingPoint:
    """Decides where the agents meet, and lets them begin.

    The command hosts the store if the plan allows that and all nodes reach it; otherwise the first
    node does.

    Args:
        plan: what the agents run.
        say: shows a message, with its level.
        clock: a monotonic clock, in seconds.

    Attributes:
        endpoint: where they meet; empty before that is decided.
        problem: why they cannot meet; otherwise empty.
    """

    def __init__(
        self, plan: JobPlan, say: Callable[[str, str], None], clock: Callable[[], float]
    ) -> None:
        self.endpoint = ""
        self.problem = ""
        self._plan = plan
        self._say = say
        self._offer = None if plan.store is None else StoreOffer(plan.store, clock)
        self._host: ConnectedNode | None = None

    def is_decided(self, nodes: Sequence[ConnectedNode]) -> bool:
        """Decide; returns whether there is an endpoint or a problem now.

        Args:
            nodes: those that wait for their settings; call it again with them until it is decided.
        """
        if self.endpoint or self.problem:
            return True
        offer = self._offer
        if offer is not None and not offer.is_decided(nodes):
            return False
        if offer is not None and offer.problem and self._plan.is_store_required:
            self.problem = (
                f"this command cannot host the store (--store-host=command): {offer.problem}"
            )
            return True
        if offer is not None and not offer.problem:
            self.endpoint = offer.endpoint
        elif self._plan.endpoint:
            self.endpoint = self._plan.endpoint
        else:
            self._host = nodes[0]
            self.endpoint = self._host.endpoint()
        if offer is not None and offer.problem:
            self._say(
                f"{nodes[0].name} hosts the rendezvous store, and the job ends if it is lost; this "
                f"command does not host it: {offer.problem}",
                "INFO",
            )
        is_here = offer is not None and not offer.problem
        self._say(self._plan.describe(self.endpoint, is_hosted_here=is_here), "INFO")
        return True

    def admit(self, node: ConnectedNode) -> None:
        """Let a node begin, or stop it if it comes later and does not reach the store."""
        problem = "" if self._offer is None else self._offer.problem_of(node)
        if problem:
            node.stop(problem)
        elif problem is not None:
            self._configure(node)

    def show_reports(self) -> None:
        """Show what the store has reported."""
        for text in () if self._offer is None else self._offer.take_reports():
            self._say(text, "WARNING")

    def close(self) -> None:
        """End the store. The agents need it until they have ended."""
        if self._offer is not None:
            self._offer.close()

    def _configure(self, node: ConnectedNode) -> None:
        """Send a node its settings."""
        node.configure(
            self._plan.settings_of(
                node.index, node.address, self.endpoint, is_host=node is self._host
            )
        )
