"""The engine `slurm`: one job step for each agent, in an allocation."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from typing import TYPE_CHECKING

from plaunch.cli import STDERR
from plaunch.errors import ExitCode, UsageError
from plaunch.texts import printable

from plaunch_engines.agent_process import AgentProcess
from plaunch_engines.slurm_allocation import END
from plaunch_engines.slurm_programs import ask_slurm, excluding, require

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plaunch.engines import EngineRequest

# Waits for the job and the node of an agent. What follows on standard input is for the agent.
_WAIT = """\
while read -r word value; do
    case $word in
        say) echo "$value" >&2 ;;
        fail) exit 1 ;;
        *) exec srun --jobid="$word" --nodelist="$value" "$@" ;;
    esac
done
"""
# A step has all processors and all memory that the job has on the node, also if others run there.
_STEP = ("--nodes=1", "--ntasks=1", "--overlap", "--mem=0", "--cpu-bind=none", "--quiet")
# Variables of a batch script that would change the shape of each step.
_SHAPES = re.compile(
    r"SLURM_(CPU_BIND.*|DISTRIBUTION|EXACT|HOSTFILE|LABELIO|MEM_PER_.*|NTASKS_PER_.*|STD.*MODE)"
)
_RELEASE_TIMEOUT = 10.0  # seconds for an allocation to be released


class SlurmHandle(AgentProcess):
    """An agent that is a job step.

    Args:
        engine: calls `place` once it knows the job and the node.
        command: the agent's command.
        env: the variables of srun and of the agent.
    """

    def __init__(self, engine: SlurmEngine, command: Sequence[str], env: Mapping[str, str]) -> None:
        super().__init__("slurm", ["sh", "-c", _WAIT, "sh", *_STEP, *command], env=env)
        self._engine = engine
        self._is_placed = False

    def place(self, job: str, node: str) -> None:
        """Start the agent."""
        self.node = node
        self._is_placed = True
        self.write(f"{job} {node}\n".encode())

    def poll(self) -> int | None:
        """Return the exit code of the agent."""
        self._engine.advance()
        if self._is_placed:
            self.send_heartbeat(self._engine.silence_limit)
        return super().poll()

    def stop(self) -> None:
        """Kill srun alone: a second process of srun then kills the step."""
        if super().poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class SlurmEngine:
    """Starts the agents in the allocation that this process is in, or in a new one.

    A node is lost with its agent, or because Slurm has taken it from the job. Another agent starts
    on a node that is not used, or else on one whose agent has ended. Nodes that the job excluded
    are not used again.

    Args:
        request: what the user requests.
        options: options of salloc.

    Raises:
        UsageError: Slurm is not installed, no node is left, or there are options for an allocation
            that exists.
    """

    can_replace = True
    used_options = ("exclude", "silence_limit")

    def __init__(self, request: EngineRequest, options: Sequence[str]) -> None:
        require("srun")
        self.silence_limit = request.silence_limit
        self._options = [f"--job-name={request.job}", *excluding(request), *options]
        self._excluded = {*request.exclude}
        self._job = os.environ.get("SLURM_JOB_ID", "")
        self._names: list[str] = []
        self._handles: list[SlurmHandle] = []
        self._waiting: list[SlurmHandle] = []
        self._salloc: AgentProcess | None = None
        self._granted = b""
        self.nodes: int | None = None
        if not self._job:
            require("salloc")
            return
        if options:
            raise UsageError(
                f"--slurm-options are for a new allocation, and this is job {self._job}; leave "
                "them out"
            )
        self._names = self._ask_nodes()
        if not self._names:
            raise UsageError(
                f"--on=slurm: job {self._job} (SLURM_JOB_ID) has no nodes; it has ended, or squeue "
                "does not work here"
            )
        for name in sorted(self._excluded - {*self._names}):
            if not ask_slurm("scontrol", "show", "node", name):
                raise UsageError(f"--exclude: Slurm has no node {name!r}")
        self._names = [name for name in self._names if name not in self._excluded]
        if not self._names:
            raise UsageError(f"--exclude leaves no node of job {self._job} (SLURM_JOB_ID)")
        self.nodes = len(self._names)

    def start(self, command: Sequence[str], indices: Sequence[int]) -> list[SlurmHandle]:
        """Start a step for each index, as soon as there is an allocation.

        Raises:
            UsageError: the job does not have so many nodes left.
        """
        is_first = not self._handles
        nodes = [] if is_first else self._find_nodes(len(indices))
        env = {name: v for name, v in os.environ.items() if not _SHAPES.fullmatch(name)}
        env["PLAUNCH_NODE_SILENCE"] = f"{self.silence_limit:g}"  # the host of srun may fail
        started = [SlurmHandle(self, command, env) for _ in indices]
        self._handles += started
        if is_first and not self._job:
            self._waiting = started
            self._salloc = AgentProcess(
                "slurm",
                [
                    *(sys.executable, "-m", "plaunch_engines.slurm_allocation"),
                    *(f"--nodes={len(started)}", "--ntasks-per-node=1", "--no-kill"),
                    *self._options,
                ],
            )
        for handle, node in zip(started, nodes or self._names, strict=False):
            handle.place(self._job, node)
        return started

    def advance(self) -> None:
        """Start the agents that wait, once Slurm has granted the allocation."""
        if not self._waiting or self._salloc is None:
            return
        code = self._salloc.poll()
        self._granted += _read(self._salloc.stdout)
        for line in _read(self._salloc.stderr).decode(errors="replace").splitlines():
            self._show(printable(line.strip()))
        waiting = self._waiting
        if self._granted.endswith(b"\n"):
            self._job, *self._names = self._granted.decode().split()
            self._waiting = []
            for handle, node in zip(waiting, self._names, strict=True):
                handle.place(self._job, node)
        elif code is not None:
            self._waiting = []
            for handle in waiting:
                handle.write(b"fail\n")

    def close(self) -> None:
        """Stop the agents, and release an allocation that was made for them."""
        for handle in self._handles:
            handle.stop()
        if self._salloc is None:
            return
        salloc, self._salloc = self._salloc, None
        salloc.write(END)
        until = time.monotonic() + _RELEASE_TIMEOUT
        while salloc.poll() is None and time.monotonic() < until:
            _read(salloc.stderr)
            time.sleep(0.05)
        if salloc.poll() is None:
            STDERR.say(
                f"Slurm has not released job {self._job} within {_RELEASE_TIMEOUT:g} s; see squeue "
                f"--jobs={self._job}, or end it with scancel {self._job}",
                "WARNING",
            )
        salloc.close()

    def _show(self, line: str) -> None:
        """Show why the job is pending; keep other lines for the message about a failure."""
        if " is pending: " in line:
            STDERR.say(line, "INFO")
            line += "; --start-limit waits longer, --on=slurm:batch leaves the job in the queue"
        for handle in self._waiting:
            handle.write(f"say {line}\n".encode())

    def _find_nodes(self, count: int) -> list[str]:
        """Return nodes on which an agent can start in the place of another.

        Raises:
            UsageError: there are not so many.
        """
        present = self._ask_nodes()
        used = [h.node for h in self._handles if h.poll() in (None, ExitCode.NODE_EXCLUDED)]
        used += self._excluded
        ended = [h.node for h in self._handles]
        free = sorted((n for n in present if n not in used), key=lambda node: node in ended)
        if len(free) < count:
            raise UsageError(
                f"job {self._job} has no other node"
                if present
                else f"job {self._job} has ended, or squeue does not answer"
            )
        return free[:count]

    def _ask_nodes(self) -> list[str]:
        """Return the nodes that the job has now."""
        nodes = ask_slurm("squeue", "--noheader", f"--jobs={self._job}", "--format=%N")
        return ask_slurm("scontrol", "show", "hostnames", nodes).split() if nodes else []


def _read(fd: int) -> bytes:
    """Return what can be read now."""
    try:
        return os.read(fd, 65536)
    except BlockingIOError:
        return b""
