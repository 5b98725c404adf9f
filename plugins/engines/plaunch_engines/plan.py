"""What a job runs on its nodes: the command, the options and the environment of each agent."""

from __future__ import annotations

import base64
import math
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plaunch import __version__
from plaunch.cli import reads_stdin
from plaunch.errors import UsageError

from plaunch_engines.node_command import node_command
from plaunch_engines.options import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from plaunch.cli import Arguments
    from plaunch.options import Option

    from plaunch_engines.ending import NodeFacts

# Options that this command sets for each agent.
_OF_AGENTS = ("node_rank", "scheduler", "standalone")


@dataclass(frozen=True, kw_only=True)
class OfferedStore:
    """A store that this command may host.

    Args:
        token: of the job.
        run_id: of the job.
        address: the only address to offer; empty for all that nodes could reach.
        port_range: the first and the last port that may be used, or None for any.
        is_required: whether no node may host the store instead.
        problem: why this command cannot host it after all; otherwise empty.
    """

    token: bytes
    run_id: str
    address: str = ""
    port_range: tuple[int, int] | None = None
    is_required: bool = False
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class JobPlan:
    """What all agents of a job have in common, and what differs between them.

    Args:
        job: the name of the job in messages.
        engine: the name of the engine, as after `--on=`.
        count: the number of agents to start: nodes and spares.
        min_nodes: the smallest number of nodes with which the job runs.
        max_nodes: the largest number.
        options: the options that the user has given for the agents.
        program: the script and its arguments.
        script: the file that must be the same on each node; empty if the program is not a file.
        script_content: identifies its content here; see `records.describe_script`.
        folder: the working folder.
        env: the variables of each agent.
        python: the interpreter of the agents.
        output_folder: where each node has a file with its output; empty for none.
        setup: the line that a shell runs before each agent; empty for none.
        rdzv_conf: the options of the rendezvous backend.
        endpoint: the rendezvous endpoint; empty if the first node hosts it.
        is_static: whether the backend has given ranks.
        start_timeout: seconds for all agents to report.
        shutdown_timeout: seconds that workers get to end.
        silence_limit: seconds without a sign of the command after which agents end their workers;
            inf for never.
        store: the rendezvous store that this command may host, or None.
        stdin: the script, if it comes from the stdin of this command; otherwise None.
    """

    job: str
    engine: str
    count: int
    min_nodes: int
    max_nodes: int
    options: Sequence[str]
    program: Sequence[str]
    script: str
    script_content: str
    folder: str
    env: Mapping[str, str]
    python: str = sys.executable
    output_folder: str = ""
    setup: str = ""
    rdzv_conf: str = ""
    endpoint: str = ""
    is_static: bool = False
    start_timeout: float = 60.0
    shutdown_timeout: float = 30.0
    silence_limit: float = math.inf
    store: OfferedStore | None = None
    stdin: bytes | None = None

    @property
    def is_store_required(self) -> bool:
        """Whether the job must not start unless this command hosts the store."""
        return self.store is not None and self.store.is_required

    @property
    def command(self) -> list[str]:
        """The command of each agent."""
        return node_command(self.python, self.folder, self.script, self.setup)

    def describe(self, endpoint: str, *, is_hosted_here: bool = False) -> str:
        """Return the line about the job that begins.

        Args:
            endpoint: where all nodes meet.
            is_hosted_here: whether this command hosts the rendezvous store.
        """
        nodes = str(self.max_nodes)
        if self.min_nodes < self.max_nodes:
            nodes = f"{self.min_nodes} to {nodes}"
        files = f"; output of each node in {self.output_folder}" if self.output_folder else ""
        spares = self.count - self.max_nodes
        more = f", {spares} of them spare" if spares > 0 else ""
        agents = f"{self.count} {'agent' if self.count == 1 else 'agents'}{more}"
        word = "node" if nodes == "1" else "nodes"
        hosted = ", hosted by this command" if is_hosted_here else ""
        return f"run id {self.job}: {nodes} {word} at {endpoint}{hosted}; {agents}{files}"

    def settings_of(
        self, index: int, address: str, endpoint: str, *, is_host: bool
    ) -> dict[str, object]:
        """Return what an agent gets: its arguments and its variables.

        Args:
            index: the number of the node.
            address: the address at which the other nodes reach it.
            endpoint: where all nodes meet.
            is_host: whether the node hosts the rendezvous store, if the user has not given an
                endpoint.
        """
        options, conf = [*self.options], self.rdzv_conf
        if self.is_static:
            host, _, port = endpoint.rpartition(":")
            options += [f"--node-rank={index}", f"--master-addr={host}", f"--master-port={port}"]
        else:
            options.append(f"--rdzv-endpoint={endpoint}")
            if index < self.max_nodes:  # spares and replacements take any rank
                options.append(f"--node-rank={index}")
            if not self.endpoint:
                conf = ",".join(filter(None, [conf, f"is_host={str(is_host).lower()}"]))
        if conf:
            options.append(f"--rdzv-conf={conf}")
        if address:
            options.append(f"--local-addr={address}")
        settings: dict[str, object] = {
            "arguments": [*options, "--", *self.program],
            "env": dict(self.env),
        }
        if self.stdin is not None:
            settings["stdin"] = base64.b64encode(self.stdin).decode()
        return settings

    def describe_problems(self, problems: Sequence[str]) -> str:
        """Return the message about nodes on which the job cannot start."""
        lines = [line + self._hint(line) for line in dict.fromkeys(filter(None, problems))]
        if len(lines) == 1:
            return f"nothing was started: {lines[0]}"
        return f"nothing was started, because of {len(lines)} nodes:\n  " + "\n  ".join(lines)

    def _hint(self, problem: str) -> str:
        """Return what to do about a node whose Python is not there, or has no plaunch."""
        if "No module named 'plaunch" in problem:
            return f"; install plaunch {__version__} for this Python, or name another --node-python"
        if f"{self.python}: No such file" in problem:
            return "; name the Python of the nodes with --node-python"
        return ""

    def describe_loss(self, gone: Sequence[NodeFacts], left: int) -> str:
        """Return the message about a job that has too few nodes, after those were lost or left."""
        names = {
            what: ", ".join(node.name for node in gone if node.has_left == (what == "left"))
            for what in ("lost", "left")
        }
        ends = " and ".join(f"{named} {what}" for what, named in names.items() if named)
        return (
            f"{ends}; {count_left(left)}, the job needs {self.min_nodes} (--nnodes). A job "
            "survives this with spare nodes (--spares=N), or with fewer nodes (--nnodes=MIN:MAX)"
        )


def count_left(nodes: int) -> str:
    """Return how many nodes are left, as part of a message."""
    return "1 node is left" if nodes == 1 else f"{nodes} nodes are left"


def refuse_agents_options(args: Arguments) -> None:
    """Refuse options that differ between agents, which the command sets.

    Raises:
        UsageError: one is given.
    """
    for dest in _OF_AGENTS:
        if args.is_given(dest):
            option = args.table.find(dest)
            name = dest if option is None else option.names[-1]
            raise UsageError(f"{name} is set for each agent by --on; leave it out")


def refuse_options_of_others(args: Arguments, engine: str, engines: Iterable[str]) -> None:
    """Refuse options of another engine than the one that is used.

    Args:
        args: the parsed options.
        engine: the name of the engine.
        engines: the names of all engines, with which their options begin.

    Raises:
        UsageError: one is given on the command line.
    """
    others = {*engines} - {engine}
    for option in OPTIONS:
        owner = option.dest.partition("_")[0]
        if owner in others and _is_typed(args, option):
            raise UsageError(
                f"{option.names[-1]} is an option of --on={owner}, and this is --on={engine}; "
                "leave it out"
            )


def refuse_options_of_engines(args: Arguments, manager: object) -> str:
    """Refuse options of engines in a launch without one.

    Raises:
        UsageError: one is given on the command line.
    """
    del manager
    for option in OPTIONS:
        if _is_typed(args, option):
            raise UsageError(
                f"{option.names[-1]} has no effect without --on, and this launch is one of this "
                "node alone; add --on, or leave it out"
            )
    return ""


def _is_typed(args: Arguments, option: Option) -> bool:
    """Whether an option is on the command line, to which `plaunch_torchrun` adds variables."""
    return args.is_on_command_line(option.dest) and option.variable not in os.environ


def script_of(args: Arguments) -> str:
    """Return the file of the program; empty if it is a module or found in PATH."""
    program = args.training_script or ""
    if args.module or reads_stdin(args) or (args.no_python and os.sep not in program):
        return ""
    return str(program)
