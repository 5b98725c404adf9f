"""Grouping agents by launch, and putting those of a launch on one time axis.

Agents belong to the same launch if they joined the same round, or ran at the same time. The times
of one agent are on its monotonic clock, which is never adjusted. The clocks of two agents are
aligned by the rounds that both joined: all nodes see a round complete at about the same time.
Agents on one host share a clock.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plaunch.errors import UsageError

if TYPE_CHECKING:
    from plaunch_report.agents import Agent, EventRecord

RoundKey = tuple[int, str, int]
_SAME = 0.2  # seconds; agents with one host name and a smaller difference share a clock
NOTABLE_SKEW = 0.5  # seconds; larger differences of clocks are noted in the report


def round_key(record: EventRecord) -> RoundKey:
    """Identifies a round: what all its agents have in `rendezvous.completed`."""
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

    for first, *others in _groups_by_round(agents):
        for index in others:
            root[find(index)] = find(first)
    groups: dict[int, list[Agent]] = {}
    alone: list[Agent] = []
    for index, agent in enumerate(agents):
        if agent.last("rendezvous.completed") is None:
            alone.append(agent)  # a spare, or an agent that was too late for the round
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


def _groups_by_round(agents: list[Agent]) -> list[list[int]]:
    """The agents of each round, by index."""
    arrivals: dict[RoundKey, list[tuple[float, int, int]]] = {}
    for index, agent in enumerate(agents):
        for record in agent.all("rendezvous.completed"):
            arrival = (record.timestamp, record.number("group_rank"), index)
            arrivals.setdefault(round_key(record), []).append(arrival)
    groups = []
    for members in arrivals.values():
        # With a fixed port, a later launch has the same key; its first rank is a repeated one.
        ranks: set[int] = set()
        group: list[int] = []
        for _, rank, index in sorted(members):
            if rank in ranks:
                groups.append(group)
                ranks, group = set(), []
            ranks.add(rank)
            group.append(index)
        groups.append(group)
    return groups


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
    """Return a clock for each agent; the reference is the agent that joined the most rounds."""
    seen = [_rounds(agent) for agent in agents]
    by_round: dict[RoundKey, list[int]] = {}
    for index, rounds in enumerate(seen):
        for key in rounds:
            by_round.setdefault(key, []).append(index)
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
        near = {other for key in seen[known] for other in by_round[key]}
        for other in sorted(near - offsets.keys()):
            shared = seen[known].keys() & seen[other].keys()
            apart = [seen[known][key] - seen[other][key] for key in shared]
            offsets[other] = offsets[known] + statistics.median(apart)
            waiting.append(other)
    # An agent that joined no round with others is placed by its host's date.
    clocks = []
    for index in range(len(agents)):
        if index in offsets:
            clocks.append(Clock(offsets[index], own[index] - offsets[index]))
        else:
            clocks.append(Clock(own[index], None))
    return clocks


def _rounds(agent: Agent) -> dict[RoundKey, float]:
    return {
        round_key(record): record.monotonic
        for record in agent.all("rendezvous.completed")
        if record.number("group_world_size", 1) > 1
    }


def _own_offset(agent: Agent) -> float:
    """The offset by its own host's date; the median, because the date may have been set."""
    return statistics.median(agent.offsets)
