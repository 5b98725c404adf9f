"""The contract of engines, which start the agents of a job on its nodes.

An engine only knows how to run one program on each of several nodes: through ssh, Slurm, Ray, or
something else. `plaunch --on=ENGINE:WHERE` uses it, and decides everything about the job: what all
agents must agree on, when one is replaced, and when the job is over.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


SILENCE_LIMIT = 40.0  # seconds


@dataclass(frozen=True, kw_only=True)
class EngineRequest:
    """What the user requests from an engine; new fields may be added.

    Args:
        where: the text after the first colon of `--on=ENGINE:WHERE`; empty without one.
        min_nodes: the smallest number of nodes that the job runs with; None if the user has not
            given `--nnodes`.
        max_nodes: the largest number of nodes of the job; None as above.
        spares: the number of further nodes, which wait to replace others.
        exclude: the names of hosts that must not be used (`--exclude`).
        pythons: the Python of some hosts, by name (`--node-python=HOSTS=PATH`).
        silence_limit: seconds without a sign of the command after which an agent ends its workers,
            if its connection may end without notice; inf for never.
        folder: the working folder of the agents, which each node must have at this path.
        options: the values of the options that the engine's package declares, by attribute:
            `acme_queue` for `--acme-queue`.
        job: a word that identifies the job, for names and labels on the nodes, another one for
            each command: at most 20 lower-case letters, digits and dashes, of which the first one
            is a letter.
    """

    where: str = ""
    min_nodes: int | None = None
    max_nodes: int | None = None
    spares: int = 0
    exclude: Sequence[str] = ()
    pythons: Mapping[str, str] = field(default_factory=dict)
    silence_limit: float = SILENCE_LIMIT
    folder: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    job: str = "plaunch"


class BatchEngine(Protocol):
    """Launches a whole job on a system that starts the agents itself, and restarts them.

    The agents get their number, endpoint and run id from that system (`--scheduler`).

    Attributes:
        has_own_files: whether the nodes do not have the files of this machine, so that the script
            is not looked for here. May be missing, which means false.
        used_options: those of `exclude`, `node_output`, `node_python`, `node_setup`, `pass_env`,
            `pass_secret` and `start_limit` that have an effect; the others are usage errors. May be
            missing, which means none.
        can_replace: whether the system starts other agents in the place of lost ones. May be
            missing, which means false.
    """

    def launch(self, arguments: Sequence[str], show: Callable[[str], None]) -> int:
        """Submit the job and follow it, if the user wants that; return the exit code.

        Runs on the main thread, where SIGINT raises KeyboardInterrupt and SIGTERM the same.

        Args:
            arguments: the options of an agent that the user has given, then `--`, the script and
                its arguments; without the options of engines.
            show: prints a line on standard output.

        Raises:
            PlaunchError: the job cannot be submitted or followed.
        """

    def close(self) -> None:
        """Release the engine; may be called again."""


class AgentHandle(Protocol):
    """One agent that an engine has started. No method blocks; all are called on one thread.

    The descriptors are readable when the agent has written something, and at its end. The reader
    waits for the end of both before it takes the exit code for the end of the agent.

    A handle may have a method `describe_silence() -> str`, which says what it knows of an agent
    that has not reported in time.

    Attributes:
        node: the name of the node, for messages and in front of lines. If the system chooses the
            node, `poll` sets it before the agent's first output.
        address: the address at which the other nodes reach it; empty to let the agent find out,
            which takes PLAUNCH_NODE_ADDRESS or the name of its host. Set by `poll` as above.
        stdout: a descriptor of the agent's standard output; the handle closes it.
        stderr: the same for standard error.
    """

    node: str
    address: str
    stdout: int
    stderr: int

    def write(self, data: bytes) -> None:
        """Write to the standard input of the agent; a no-op if it has ended.

        The agent ends when its standard input is closed, for whatever reason.
        """

    def poll(self) -> int | None:
        """Return the exit code of the agent, 128+n for signal n; None while it runs."""

    def stop(self) -> None:
        """End the agent now and without grace, as SIGKILL does; may be called again.

        The agent gets signals that it handles over its standard input, not through the engine.
        """

    def close(self) -> None:
        """Release what the handle has; the agent has ended, or `stop` was called."""


class Engine(Protocol):
    """Runs one program on each node; created for one job.

    It is created with an `EngineRequest`, on any thread, and raises `UsageError` if the request
    cannot be fulfilled. Everything else is called on one thread. What an agent is reached through
    may end without it, such as a client of a daemon: the engine then ends the agent, too.

    Attributes:
        nodes: the number of nodes that the engine has been given, for a job without `--nnodes`;
            None if it provides as many as are requested.
        can_replace: whether `start` may be called again while the job runs, for nodes in the place
            of others that are lost. Some engines have spare nodes for that.
        used_options: `exclude` if it leaves out `EngineRequest.exclude`, `pythons` if it starts
            agents with `EngineRequest.pythons`, `silence_limit` if its agents have that of the
            request; otherwise the options are usage errors. May be missing, which means none.
    """

    nodes: int | None
    can_replace: bool

    def start(self, command: Sequence[str], indices: Sequence[int]) -> Sequence[AgentHandle]:
        """Begin to start `command` on as many nodes, and return a handle for each index.

        Returns at once: an agent that cannot be started ends with a code, and its handle's
        descriptors have the reason. Standard input is a pipe that `AgentHandle.write` writes to.
        The environment and the working folder of the agent are sent there.

        Called once with all indices from 0, and again with the next index for each node that is
        replaced.

        Args:
            command: the program and its arguments, the same for all nodes.
            indices: a number of each node that is unique in the job, in increasing order. It is no
                rank: nodes that replace others get new ones.

        Raises:
            UsageError: no agent can be started, for example because nodes are missing.
        """

    def close(self) -> None:
        """End everything that this engine has started, and release it; may be called again.

        May wait for some seconds.
        """
