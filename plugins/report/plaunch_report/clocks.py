"""One time axis for agents whose hosts have different clocks.

Within an agent, the monotonic clock is used, because it is never set. Agents are aligned by the
rounds that they formed together: all of them see a round complete at about the same time. Agents of
one host have the same clock.
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

_SAME = 0.2  # seconds; agents with one host name and a smaller difference share a clock
NOTABLE_SKEW = 0.5  # seconds; larger differences of clocks are noted in the report


@dataclass(frozen=True)
class Clock:
    """The clock of one agent.

    Args:
        offset: seconds to add to its monotonic times, to get the reference agent's seconds since
            the epoch.
        skew: seconds by which its host's date is ahead of the reference's; None if unknown.
    """

    offset: float
    skew: float | None


def align(agents: list[Agent]) -> list[Clock]:
    """Return a clock for each agent; the reference is the agent of most rounds."""
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
    # An agent that shared no round with others is placed by its host's date.
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
    """The offset by its own host's date; the median, because the date may have been set."""
    return statistics.median(agent.offsets)
