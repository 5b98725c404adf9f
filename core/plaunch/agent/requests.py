"""What other threads may ask of an agent, and what they may know of it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from plaunch.agent.states import Requested, RequestKind

if TYPE_CHECKING:
    import signal
    from collections.abc import Collection, Mapping

    from plaunch.agent.poller import WakeUp
    from plaunch.agent.worker import WorkerState


@dataclass(frozen=True)
class AgentSnapshot:
    """Where an agent is at one moment.

    Args:
        state: that of its workers.
        round: how many worlds were formed before this one; -1 before the first.
        attempt: how many restarts were used.
        ranks: the global ranks of its workers; empty before the first round.
        pids: the process ids of those that run, by global rank.
    """

    state: WorkerState
    round: int
    attempt: int
    ranks: tuple[int, ...]
    pids: Mapping[int, int]


class SignalWorkers(NamedTuple):
    """A signal for the workers that run, or for some global ranks of them; they go on."""

    signum: signal.Signals
    ranks: frozenset[int] | None


class Requests:
    """Keeps what is asked, from any thread, until the loop takes it.

    Args:
        wake_up: is woken at every request.
    """

    def __init__(self, wake_up: WakeUp) -> None:
        self._wake_up = wake_up
        self._asked: deque[Requested | SignalWorkers] = deque()

    def ask(self, kind: RequestKind, reason: str, who: str) -> None:
        """Ask for something."""
        self._put(Requested(kind, reason, who))

    def signal(self, signum: signal.Signals, ranks: Collection[int] | None) -> None:
        """Have a signal sent."""
        self._put(SignalWorkers(signum, None if ranks is None else frozenset(ranks)))

    def _put(self, request: Requested | SignalWorkers) -> None:
        self._asked.append(request)
        self._wake_up.wake()

    def take(self) -> list[Requested | SignalWorkers]:
        """All requests since the last call, in order."""
        return [self._asked.popleft() for _ in range(len(self._asked))]

    def has_end(self) -> bool:
        """Whether one that has not been taken yet asks for the end of the run."""
        return any(
            isinstance(request, Requested) and request.kind is not RequestKind.RESTART
            for request in tuple(self._asked)
        )
