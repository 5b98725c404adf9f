"""The engine `local`: several agents on this machine, to try a job of several nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.errors import UsageError
from plaunch.numbers import digits

from plaunch_engines.agent_process import AgentProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plaunch.engines import EngineRequest

_MAX_NODES = 1024


class LocalEngine:
    """Starts each agent as a process of this machine; they meet on loopback.

    Args:
        request: `where` is the number of agents; by default that of `--nnodes`.

    Raises:
        UsageError: the number is invalid.
    """

    can_replace = True

    def __init__(self, request: EngineRequest) -> None:
        self.nodes = parse_count("local", request.where)
        self._handles: list[AgentProcess] = []

    def start(self, command: Sequence[str], indices: Sequence[int]) -> list[AgentProcess]:
        """Start the agents."""
        started = [AgentProcess(f"node{i}", command, address="127.0.0.1") for i in indices]
        self._handles += started
        return started

    def close(self) -> None:
        """Kill agents that are left; their guards end the workers."""
        for handle in self._handles:
            handle.stop()


def parse_count(engine: str, where: str) -> int | None:
    """Read the number of nodes in `--on=ENGINE:N`; None without one.

    Raises:
        UsageError: it is not a number of nodes.
    """
    if not where:
        return None
    count = digits(where, _MAX_NODES)
    if not count:
        raise UsageError(
            f"--on={engine}:{where}: {where!r} is not a number of nodes from 1 to {_MAX_NODES}"
        )
    return count
