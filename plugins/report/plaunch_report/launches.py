"""Grouping agents by launch, and putting those of a launch on one time axis.

Agents of a launch met in a round, or ran at the same time. Within an agent, the monotonic clock is
used, because it is never set. Agents are aligned by the rounds that they formed together: all of
them see a round complete at about the same time. Agents of one host have the same clock.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plaunch.errors import UsageError

if TYPE_CHECKING:
    from plaunch_report.agents import Agent, EventRecord

Meeting = tuple[int, str, int]
_SAME = 0.2  # seconds; agents with one host name and a smaller difference share a clock
NOTABLE_SKEW = 0.5  # seconds; larger differences of clocks are noted in the report


def meeting_of(record: EventRecord) -> Meeting:
    """The values that are equal in the `rendezvous.completed` of all agents of a round."""
    return record.number("round"), record.text("master_addr"), record.number("master_port")


def choose_run(agents: list[Agent], run_id: str | None) -> list[Agent]:
    """Return the agents of the selected run, or of the only one.

    Raises:
        UsageError: there is no such run, or there are several and none is selected.
    """
    found = sorted({agent.run_id for agent in agents})
    choices = ", ".join(map(repr, found[:10])) + (", ..." if len(found) > 10 else "")
    if run_id is None and len(found) > 1:
        raise UsageError(f"there are {len(found)} runs; choose with --run-id: {choices}")
    if run_id is not None and run_id not in found:
        raise UsageError(f"there is no run {run_id!r}; choose with --run-id: {choices}")
    return [agent for agent in agents if run_id is None or agent.run_id == run_id]


def choose_launch(agents: list[Agent], number: int | None) -> tuple[list[Agent], int, int]:
    """Return the agents of one launch of a run id; by default, of the last one.

    Returns:
        The agents, the number of the launch (from 1, by time), and the number of launches.

    Raises:
        UsageError: there is no such launch.
    """
    launches = split_launches(agents)
    count = len(launches)
    number = count if number is None else number
    if not 1 <= number <= count:
        times = "once" if count == 1 else f"{count} times"
        raise UsageError(f"--launch={number}: this run was launched {times}; the first is 1")
    return launches[number - 1], number, count


def split_launches(agents: list[Agent]) -> list[list[Agent]]:
    """Group the agents of one run id by launch, in order of time."""
    root = list(range(len(agents)))

    def find(index: int) -> int:
        while root[index] != index:
            index = root[index]
        return index

    for meeting in _meetings(agents):
        for index in meeting[1:]:
            root[find(index)] = find(meeting[0])
    groups: dict[int, list[Agent]] = {}
    alone: list[Agent] = []
    for index, agent in enumerate(agents):
        if agent.last("rendezvous.completed") is None:
            alone.append(agent)  # a spare, or an agent that came too late
        else:
            groups.setdefault(find(index), []).append(agent)
    launches = sorted(groups.values(), key=_begin)
    for agent in sorted(alone, key=lambda agent: agent.began):
        joined = max(launches, key=lambda launch: _overlap(launch, agent), default=None)
        if joined is None or _overlap(joined, agent) < 0:
            launches.append([agent])
        else:
            joined.append(agent)
    return sorted(launches, key=_begin)


def _meetings(agents: list[Agent]) -> list[list[int]]:
    """The groups of agents that met in a round, by index."""
    came: dict[Meeting, list[tuple[float, int, int]]] = {}
    for index, agent in enumerate(agents):
        for record in agent.all("rendezvous.completed"):
            arrival = (record.timestamp, record.number("group_rank"), index)
            came.setdefault(meeting_of(record), []).append(arrival)
    meetings = []
    for arrivals in came.values():
        # With a fixed port, a later launch has the same address. A repeated rank begins it.
        ranks: set[int] = set()
        meeting: list[int] = []
        for _, rank, index in sorted(arrivals):
            if rank in ranks:
                meetings.append(meeting)
                ranks, meeting = set(), []
            ranks.add(rank)
            meeting.append(index)
        meetings.append(meeting)
    return meetings


def _begin(launch: list[Agent]) -> float:
    return min(agent.began for agent in launch)


def _overlap(launch: list[Agent], agent: Agent) -> float:
    """Seconds in which `agent` and a launch overlap; negative if they do not."""
    end = max(other.ended for other in launch)
    return min(end, agent.ended) - max(_begin(launch), agent.began)


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
