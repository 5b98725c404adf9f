"""The engine `local`: several agents on this machine, to try a job of several nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.errors import UsageError
from plaunch.numbers import digits

from plaunch_engines.agent_process import AgentProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plaunch.engines import EngineRequest

    from plaunch_engines.namespaces import PrivateNetwork

_MAX_NODES = 1024


class LocalEngine:
    """Starts each agent as a process of this machine.

    They meet on loopback, or each has a network namespace.

    Args:
        request: `where` is the number of agents; by default that of `--nnodes`.

    Raises:
        UsageError: the number is invalid, or namespaces are not permitted.
    """

    can_replace = True

    def __init__(self, request: EngineRequest) -> None:
        self.nodes = parse_count("local", request.where)
        self._handles: list[AgentProcess] = []
        self._network: PrivateNetwork | None = None
        if request.options.get("local_network") == "namespaces":
            from plaunch_engines.namespaces import PrivateNetwork

            self._network = PrivateNetwork()

    def start(self, command: Sequence[str], indices: Sequence[int]) -> list[AgentProcess]:
        """Start the agents."""
        started = []
        for index in indices:
            prefix: list[str] = []
            address = "127.0.0.1"
            if self._network is not None:
                prefix, address = self._network.add(index)
            started.append(_start(f"node{index}", [*prefix, *command], address))
            self._handles.append(started[-1])
        return started

    def close(self) -> None:
        """Kill agents that are left; their guards end the workers."""
        for handle in self._handles:
            handle.stop()
        if self._network is not None:
            self._network.close()


def _start(node: str, command: Sequence[str], address: str) -> AgentProcess:
    try:
        return AgentProcess(node, command, address=address)
    except OSError as error:
        raise UsageError(
            f"--on=local: {error.filename or command[0]} cannot be run on this machine: "
            f"{error.strerror}; name the Python with --node-python"
        ) from error


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
