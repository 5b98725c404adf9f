"""The moments in an agent's life that others are told of, one small type each.

An agent is given one callable, `Notify`, and calls it with these; it does not know who listens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from plaunch.agent.worker import GroupInfo, RunResult, WorkerExit, WorkerInfo, WorkerState


@dataclass(frozen=True)
class BeforeRendezvous:
    """The agent is about to join a round."""

    group: GroupInfo


@dataclass(frozen=True)
class AfterRendezvous:
    """A round is complete; ranks are known and workers are about to start.

    `duration` is how long the node waited for it, in seconds.
    """

    group: GroupInfo
    duration: float = 0.0


@dataclass(frozen=True)
class WorkersStarted:
    """All workers of this agent have been started; their pids are known."""

    group: GroupInfo


@dataclass(frozen=True)
class WorkerExited:
    """One worker has ended, by itself or because the agent stopped it."""

    group: GroupInfo
    exit: WorkerExit


@dataclass(frozen=True)
class StateChanged:
    """The worker group went from one state to another."""

    group: GroupInfo
    old: WorkerState
    new: WorkerState


@dataclass(frozen=True)
class AgentFinished:
    """The agent is done; nothing follows.

    `result` is None when no result exists: a signal ended the job, or an error of plaunch's own.
    """

    group: GroupInfo
    result: RunResult | None


Moment = (
    BeforeRendezvous
    | AfterRendezvous
    | WorkersStarted
    | WorkerExited
    | StateChanged
    | AgentFinished
)
Notify = Callable[[Moment], None]
WorkerEnv = Callable[[WorkerInfo, Mapping[str, str]], Mapping[str, str]]
