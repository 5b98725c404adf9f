"""One time axis for agents whose hosts have different clocks.

Within an agent, the monotonic clock counts; nothing sets it. Agents are put beside each other by
the rounds that they formed together: all of them see a round complete at about the same moment.
Agents of one host have the same clock.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plaunch_report.launches import meeting_of

if TYPE_CHECKING:
    from plaunch_report.agents import Agent
    from plaunch_report.launches import Meeting

_SAME = 0.2  # seconds by which agents of one name of a host may differ that have the same clocks
NOTABLE_SKEW = 0.5  # seconds that clocks may differ before it is worth a word


@dataclass(frozen=True)
class Clock:
    """How the times of one agent are read.

    Args:
        offset: what is added to its monotonic seconds for seconds since the epoch, as the
            reference agent has them.
        skew: how far its host's date is ahead of the reference's, in seconds; None if unknown.
    """

    offset: float
    skew: float | None


def align(agents: list[Agent]) -> list[Clock]:
    """A clock for each agent; the reference is the one that was in most rounds."""
    seen = [_rounds(agent) for agent in agents]
    by_meeting: dict[Meeting, list[int]] = {}
    for index, rounds in enumerate(seen):
        for meeting in rounds:
            by_meeting.setdefault(meeting, []).append(index)
    own = [_own_offset(agent) for agent in agents]
    reference = max(range(len(agents)), key=lambda index: (len(seen[index]), -index))
    offsets = {reference: own[reference]}
    waiting = deque([reference])
    while waiting:
        known = waiting.popleft()
        for other, agent in enumerate(agents):
            is_same = agent.host == agents[known].host and abs(own[other] - own[known]) < _SAME
            if is_same and other not in offsets:
                offsets[other] = offsets[known]
                waiting.append(other)
        near = {other for meeting in seen[known] for other in by_meeting[meeting]}
        for other in sorted(near - offsets.keys()):
            shared = seen[known].keys() & seen[other].keys()
            apart = [seen[known][meeting] - seen[other][meeting] for meeting in shared]
            offsets[other] = offsets[known] + statistics.median(apart)
            waiting.append(other)
    # One that was in no round with others is where its host's date puts it.
    clocks = []
    for index in range(len(agents)):
        if index in offsets:
            clocks.append(Clock(offsets[index], own[index] - offsets[index]))
        else:
            clocks.append(Clock(own[index], None))
    return clocks


def _rounds(agent: Agent) -> dict[Meeting, float]:
    return {
        meeting_of(record): record.monotonic
        for record in agent.all("rendezvous.completed")
        if record.number("group_world_size", 1) > 1
    }


def _own_offset(agent: Agent) -> float:
    """What its own host's date says; the median, since a date may be set meanwhile."""
    return statistics.median(agent.offsets)
