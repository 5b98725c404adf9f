"""The nodes of a job on an engine: which begin, which take the place of others, which are lost."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from plaunch.errors import PlaunchError

from plaunch_engines.agents import AgentState, ConnectedNode
from plaunch_engines.errors import NodesLostError, StartError
from plaunch_engines.meeting_point import MeetingPoint
from plaunch_engines.plan import count_left
from plaunch_engines.starting import PlaceCandidate, StartState, choose, count_possible, is_full

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from plaunch.engines import Engine

    from plaunch_engines.ending import NodeFacts
    from plaunch_engines.plan import JobPlan

_PROBLEMS_WAIT = 3.0  # seconds for other nodes to report problems, after the first problem
_ORDER_WAIT = 2.0  # seconds for the first nodes of the list to come, once others could take over
_SLOW_START = 2.0  # seconds after which the replacement of further nodes has to wait
_MAX_REPLACED = 3  # replacements for each node of the job, in all
_START_STATES = {
    AgentState.STARTING: StartState.STARTING,
    AgentState.READY: StartState.READY,
    AgentState.RUNNING: StartState.PLACED,
    AgentState.ENDED: StartState.UNREACHABLE,
}


class StartedNodes:
    """The nodes of one job.

    Args:
        engine: starts agents.
        plan: what to start.
        say: shows a message, with its level.
        clock: a monotonic clock, in seconds.

    Attributes:
        lost: the nodes that were lost or have left when too few were left without them.
    """

    def __init__(
        self,
        engine: Engine,
        plan: JobPlan,
        say: Callable[[str, str], None],
        clock: Callable[[], float],
    ) -> None:
        self.lost: list[NodeFacts] = []
        self._engine = engine
        self._plan = plan
        self._say = say
        self._clock = clock
        self._nodes: list[ConnectedNode] = []
        self._meeting = MeetingPoint(plan, say, clock)
        self._problem_at = math.inf  # when too few nodes were left for the start, or one differed
        self._full_at = math.inf  # when enough nodes for all places had come
        self._replaced = 0
        self._left = 0  # nodes when the last one was lost

    def __iter__(self) -> Iterator[ConnectedNode]:
        return iter(self._nodes)

    def facts(self) -> list[NodeFacts]:
        """Return what is known of each node."""
        return [node.facts() for node in self._nodes]

    def have_ended(self) -> bool:
        """Whether all agents have ended."""
        return all(node.state is AgentState.ENDED for node in self._nodes)

    def are_running(self) -> bool:
        """Whether an agent runs."""
        return any(node.state is AgentState.RUNNING for node in self._nodes)

    def start(self, indices: Iterable[int]) -> None:
        """Start agents.

        Raises:
            PlaunchError: the engine cannot.
        """
        wanted = list(indices)
        handles = self._engine.start(self._plan.command, wanted)
        until = self._clock() + self._plan.start_timeout
        self._nodes += [
            ConnectedNode(index, handle, until, self._clock)
            for index, handle in zip(wanted, handles, strict=True)
        ]

    def show_reports(self) -> None:
        """Show what the store of this command has reported."""
        self._meeting.show_reports()

    def close(self) -> None:
        """Release the nodes, whose agents have ended, and end the store, which they needed."""
        for node in self._nodes:
            node.close()
        self._meeting.close()

    def stop_waiting(self) -> None:
        """End agents that have no place yet, as the job is over; they do not count as lost."""
        for node in self._nodes:
            if node.is_alive and node.state in (AgentState.STARTING, AgentState.READY):
                node.is_counted = True
                node.stop()

    # --- places -----------------------------------------------------------------------------------

    def give_places(self) -> StartError | None:
        """Let nodes begin; return why the job cannot start, if it cannot.

        Before workers run, a node that differs from this machine is an error, and one that cannot
        be reached is not, as long as there are enough others.
        """
        plan, now = self._plan, self._clock()
        has_run = any(node.running for node in self._nodes)
        candidates = [self._candidate(node) for node in self._nodes]
        has_too_few = not self._meeting.endpoint and count_possible(candidates) < plan.min_nodes
        if not has_run and (has_too_few or any(node.difference(plan) for node in self._nodes)):
            return self._fail_start(now)
        self._problem_at = math.inf
        for node in self._nodes:
            if node.is_alive and (problem := node.problem(plan)):
                node.stop(problem)
        self._full_at = min(self._full_at, now) if is_full(candidates, plan.max_nodes) else math.inf
        indices = choose(
            candidates,
            min_nodes=plan.min_nodes,
            max_nodes=plan.max_nodes,
            prefers_ready=now - self._full_at >= _ORDER_WAIT,
        )
        fit = [node for node in self._nodes if self._is_fit(node)]
        placed = [node for node in fit if node.index in indices]
        if placed and not self._meeting.endpoint:
            others = [node for node in fit if node not in placed]
            if not self._meeting.is_decided([*placed, *others]):
                return None
            if self._meeting.problem:
                return StartError(plan.describe_problems([self._meeting.problem]))
        # Spares that begin before the workers of others could take their places.
        for node in fit if has_run else placed:
            self._meeting.admit(node)
        return None

    def _candidate(self, node: ConnectedNode) -> PlaceCandidate:
        is_unfit = bool(node.problem(self._plan))
        state = StartState.UNREACHABLE if is_unfit else _START_STATES[node.state]
        return PlaceCandidate(node.index, state)

    def _is_fit(self, node: ConnectedNode) -> bool:
        is_ready = node.is_alive and node.state is AgentState.READY
        return is_ready and not node.difference(self._plan)

    def _fail_start(self, now: float) -> StartError | None:
        """Return the error of the start, once other nodes had time to report their problems."""
        self._problem_at = min(self._problem_at, now)
        is_complete = all(
            node.state is not AgentState.STARTING or node.is_overdue() for node in self._nodes
        )
        if not is_complete and now - self._problem_at < _PROBLEMS_WAIT:
            return None
        problems = [
            node.problem(self._plan) for node in self._nodes if not node.facts().is_replaced
        ]
        return StartError(self._plan.describe_problems(problems))

    # --- losses -----------------------------------------------------------------------------------

    def handle_losses(self) -> None:
        """Report nodes that have ended while the job continues, and replace them if possible.

        If the engine is slow, the rest is left for the next call: agents need a sign of the command
        meanwhile.
        """
        until = self._clock() + _SLOW_START
        for node in self._nodes:
            facts = node.facts()
            is_gone = facts.has_ended and (facts.is_lost or facts.has_left)
            if node.is_counted or not is_gone or not self._can_continue_without_it():
                continue
            if self._clock() >= until:
                return
            node.is_counted = True
            self._say(facts.end, "WARNING")
            self._left = sum(other.state is not AgentState.ENDED for other in self._nodes)
            problem = "it was ended there" if facts.has_left else self._replace(node)
            if not problem:
                continue
            self._say(
                f"{node.name} is not replaced: {problem}; {count_left(self._left)}", "WARNING"
            )
            if self._meeting.endpoint and self._left < self._plan.min_nodes:
                self.lost.append(facts)

    def describe_loss(self) -> NodesLostError:
        """Return the error of a job that has too few nodes."""
        return NodesLostError(self._plan.describe_loss(self.lost, self._left))

    def _can_continue_without_it(self) -> bool:
        """Whether a node that is lost, before the job begins, is not the end of the job.

        If no node is ready, the others probably have the same problem.
        """
        if self._meeting.endpoint:
            return True
        candidates = [self._candidate(node) for node in self._nodes]
        if self._plan.is_static or all(one.state is not StartState.READY for one in candidates):
            return False
        is_enough = count_possible(candidates) >= self._plan.min_nodes
        return is_enough or (self._engine.can_replace and not self._has_replaced_enough())

    def _has_replaced_enough(self) -> bool:
        return self._replaced >= _MAX_REPLACED * self._plan.count

    def _replace(self, node: ConnectedNode) -> str:
        """Start a node in the place of another one; return why that is impossible, or ""."""
        if self._plan.is_static:
            return "nodes of the rendezvous backend 'static' cannot be replaced"
        if not self._engine.can_replace:
            return f"--on={self._plan.engine} has no other node"
        if self._has_replaced_enough():
            return f"{self._replaced} nodes have been replaced already"
        self._replaced += 1
        try:
            self.start([max(other.index for other in self._nodes) + 1])
        except PlaunchError as error:
            return str(error)
        node.note_replaced()
        self._say(f"{self._nodes[-1].name} is started in the place of {node.name}", "INFO")
        return ""
