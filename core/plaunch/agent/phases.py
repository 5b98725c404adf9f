"""What the loop waits for in each phase, and the events that it finds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from plaunch.agent import states
from plaunch.agent.states import Phase
from plaunch.agent.worker import WorkerState

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.agent.components import LoopComponents
    from plaunch.agent.effects import Effects
    from plaunch.agent.states import AgentEvent, State

# Seconds to wait for a failure of own workers after those of another node have failed, or a node is
# lost: it may be the first failure of the job, and only this node sees it.
_LAST_CHECK = 0.1

# In these phases the workers that have ended are those of the present round.
_WORKING = (Phase.RUNNING, Phase.CLEARING, Phase.WAITING)


class Phases:
    """Waits, in each phase, until something may have happened, and returns the events.

    Args:
        components: of the agent.
        effects: hold the stop in progress.
    """

    def __init__(self, components: LoopComponents, effects: Effects) -> None:
        self._components = components
        self._effects = effects

    def watch(self, state: State) -> list[AgentEvent]:
        """Wait once; an empty list if nothing has happened."""
        if self._effects.due() == 0.0:
            self._effects.log_deferred()
        workers = self._components.workers
        workers.holds.sample_if_due(workers.pids().values())
        if state.phase in _WORKING:
            self._components.peers.note_succeeded(workers.succeeded())
        return _WATCHES[state.phase](self, state)

    def _watch_checks(self, state: State) -> list[AgentEvent]:
        return self._components.preconditions.watch()

    def _watch_round(self, state: State) -> list[AgentEvent]:
        events = self._components.joiner.watch(state, self._effects.logged)
        for event in events:
            if isinstance(event, states.RoundFormed):
                self._effects.log_round(event.message)
        return events

    def _watch_workers(self, state: State) -> list[AgentEvent]:
        workers, peers = self._components.workers, self._components.peers
        results = self._components.results
        self._components.poller.poll(
            [*workers.exit_fds(), *peers.fds()],
            _earliest(peers.interval, workers.due(), results.cause_wait.due()),
        )
        return self.check_workers() or peers.check(self._find_own_failures)

    def check_workers(self) -> list[AgentEvent]:
        """Return the event of own workers that have failed, or have all succeeded."""
        workers, results = self._components.workers, self._components.results
        result = workers.check()
        if result.state is WorkerState.SUCCEEDED:
            results.succeed(result)
            return [states.WorkSucceeded()]
        if result.state in (WorkerState.FAILED, WorkerState.UNHEALTHY):
            group = workers.group
            is_alone = (group.group_world_size or 1) == 1
            are_all = len(result.failures) == len(group.workers)
            if results.cause_wait.is_on(result, others=not (is_alone and are_all)):
                return []
            results.fail(result)
            return [states.WorkFailed()]
        if result.state is not WorkerState.HEALTHY:
            raise RuntimeError(
                f"the workers of role {workers.group.spec.role!r} are {result.state.name}, "
                "says _monitor_workers of this agent, but that is not a state of started workers"
            )
        return []

    def _find_own_failures(self, *, is_loss: bool) -> list[AgentEvent]:
        """Check for a moment whether own workers have failed by themselves.

        If a node is lost (`is_loss`), workers that only miss a peer have not.
        """
        if not is_loss:
            self._components.results.cause_wait.end()
        self._components.workers.fail_raised()
        until = time.monotonic() + _LAST_CHECK
        while (remaining := until - time.monotonic()) > 0:
            self._components.poller.poll(self._components.workers.exit_fds(), remaining)
            events = self.check_workers()
            if events and isinstance(events[0], states.WorkFailed):
                # The other nodes soon decide what failed first, and do not wait for this report.
                self._components.results.report_failure()
                return events
        return []

    def _watch_peers(self, state: State) -> list[AgentEvent]:
        workers = self._components.workers
        events = self._components.peers.watch(workers.exit_fds(), workers.due())
        workers.tend_store()
        return events

    def _watch_stop(self, state: State) -> list[AgentEvent]:
        workers, peers = self._components.workers, self._components.peers
        results, stop = self._components.results, self._effects.stop
        self._components.poller.poll(
            [*workers.exit_fds(), *peers.fds()],
            _earliest(
                min(stop.delay, peers.interval),
                workers.due(),
                results.due(),
                self._effects.due(),
            ),
        )
        workers.tend_store()
        if results.due() == 0.0:
            results.report_failure()
        events = peers.check_while_stopping(is_clearing=state.phase is Phase.CLEARING)
        return [*events, *self._effects.end_of_stop(stop.step(), state)]


def _earliest(timeout: float, *dues: float | None) -> float:
    return min([timeout, *(due for due in dues if due is not None)])


_WATCHES: dict[Phase, Callable[[Phases, State], list[AgentEvent]]] = {
    Phase.CHECKING: Phases._watch_checks,
    Phase.JOINING: Phases._watch_round,
    Phase.RUNNING: Phases._watch_workers,
    Phase.STOPPING: Phases._watch_stop,
    Phase.CLEARING: Phases._watch_stop,
    Phase.WAITING: Phases._watch_peers,
}
