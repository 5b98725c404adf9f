"""One node of a job, as the command sees it: the agent's state, output and end."""

from __future__ import annotations

import enum
import json
import os
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

from plaunch import __version__
from plaunch.errors import ExitCode

from plaunch_engines import records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from plaunch.engines import AgentHandle

    from plaunch_engines.plan import JobPlan

_LAST_LINES = 5
_STREAM_WAIT = 2.0  # seconds for the ends of the streams after the exit of the agent


class AgentState(enum.Enum):
    """The state of one agent."""

    STARTING = "starting"  # nothing is known of it yet
    READY = "ready"  # waits for its settings
    RUNNING = "running"
    ENDED = "ended"


class ConnectedNode:
    """A node whose agent was started.

    Args:
        index: its number in the job.
        handle: of the agent.
        ready_until: when it must have reported that it is ready, on the clock.
        clock: a monotonic clock, in seconds.

    Attributes:
        state: of the agent.
        code: the exit code of the job as the agent has reported it; None if it has not.
        failure: the record of the error that it ended with, or None.
        running: the record of its last round, or None.
        is_counted: whether its loss has been handled.
        lost_at: when too few nodes were left because of its loss, or None.
    """

    def __init__(
        self, index: int, handle: AgentHandle, ready_until: float, clock: Callable[[], float]
    ) -> None:
        self.index = index
        self.state = AgentState.STARTING
        self.code: int | None = None
        self.failure: dict[str, Any] | None = None
        self.running: dict[str, Any] | None = None
        self.is_counted = False
        self.lost_at: float | None = None
        self._handle = handle
        self._ready_until = ready_until
        self._clock = clock
        self._hello: dict[str, Any] = {}
        self._exitcode: int | None = None
        self._exited_at = 0.0
        self._is_stopped = False
        self._problem = ""
        self._open = {handle.stdout: records.Records(), handle.stderr: records.Records()}
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)

    @property
    def name(self) -> str:
        """The name of the node."""
        return self._handle.node

    @property
    def address(self) -> str:
        """The address at which the other nodes reach this one."""
        return self._handle.address or str(self._hello.get("host", ""))

    def endpoint(self) -> str:
        """Return an endpoint on this node whose port is free."""
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{address}:{self._hello['port']}"

    def fds(self) -> list[int]:
        """Return the descriptors to read."""
        return list(self._open)

    def read(self, fd: int) -> Iterator[tuple[bool, bytes]]:
        """Read a descriptor; yield the lines, each with whether it is of stderr."""
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        has_reported_end = self.code is not None
        texts, found = self._open[fd].feed(data)
        if not data:
            del self._open[fd]
        for record in found:
            self._handle_record(record)
        is_error = fd == self._handle.stderr
        if is_error and has_reported_end:
            return  # what ssh or srun write about the exit code adds nothing to the report
        for text in texts:
            if is_error:
                self._last_lines.append(text.decode(errors="replace").rstrip())
            if self.state is not AgentState.STARTING:  # before, they explain why it did not start
                yield is_error, text

    def update(self, *, is_read: bool) -> None:
        """Take note of the agent's exit, once its streams have ended.

        Args:
            is_read: whether its streams are being read; they are not while the output is full.
        """
        if self.state is AgentState.ENDED:
            return
        if self._exitcode is None:
            self._exitcode = self._handle.poll()
            self._exited_at = self._clock()
        elif not is_read:
            self._exited_at = self._clock()
        if self._exitcode is not None and (
            not self._open or self._clock() - self._exited_at >= _STREAM_WAIT
        ):
            self._open.clear()
            self.state = AgentState.ENDED

    def is_overdue(self) -> bool:
        """Whether it should have been ready by now."""
        return self.state is AgentState.STARTING and self._clock() >= self._ready_until

    def problem(self, plan: JobPlan) -> str:
        """Return why the job cannot start on this node, in one line; empty if it can."""
        if self.state is AgentState.ENDED:
            return self._describe_failed_start()
        if self.is_overdue():
            limit = f"{plan.start_timeout:g} s (--start-limit)"
            return f"{self.name}: no agent has reported within {limit}" + (
                f": {self._last_lines[-1]}" if self._last_lines else ", and it has written nothing"
            )
        return self._difference(plan) if self.state is AgentState.READY else ""

    def _difference(self, plan: JobPlan) -> str:
        """Return what this node lacks, or has in another version than this one."""
        hello = self._hello
        if hello.get("protocol") != records.VERSION or hello["version"] != __version__:
            return (
                f"{self.name} has plaunch {hello['version']}, and this machine {__version__}; "
                "install the same version on all nodes"
            )
        own = ".".join(map(str, sys.version_info[:2]))
        if hello["python"].rpartition(".")[0] != own:
            return (
                f"{self.name} has Python {hello['python']}, and this machine {own}; name another "
                "one with --node-python"
            )
        missing = ""
        if not hello["has_folder"]:
            missing = (
                f"folder {plan.folder}, which is the working folder here; run the command in a "
                "folder that all nodes have"
            )
        elif plan.script and not hello["script"]:
            missing = f"{plan.script} in {plan.folder}; copy it to all nodes"
        elif hello["script"] != plan.script_content:
            return (
                f"{self.name} has another {plan.script} in {plan.folder} than this machine "
                f"({hello['script']}, here {plan.script_content}); copy this one to all nodes"
            )
        elif not hello["port"] and self.index == 0:
            missing = "free port for the rendezvous; name one (--rdzv-endpoint)"
        return missing and f"{self.name} has no {missing}"

    def configure(self, line: bytes) -> None:
        """Send the settings, with which the agent begins."""
        self._handle.write(line)
        self.state = AgentState.RUNNING

    def signal(self, signum: int) -> None:
        """Let a running agent send a signal to itself."""
        if self.state is AgentState.RUNNING:
            self._handle.write(json.dumps({"signal": int(signum)}).encode() + b"\n")

    def stop(self, problem: str = "") -> None:
        """End the agent without grace.

        Args:
            problem: why this node cannot take part in a job that runs.
        """
        self._is_stopped = True
        self._problem = self._problem or problem
        self._handle.stop()

    def close(self) -> None:
        """Release its handle."""
        self._handle.close()

    def is_replaceable(self) -> bool:
        """Whether it has ended in a way in which another node may take its place."""
        return self.code in (None, ExitCode.NODE_EXCLUDED)

    def describe_end(self) -> str:
        """Describe how a node was lost."""
        if self.code == ExitCode.NODE_EXCLUDED:
            return f"{self.name} was excluded from the job"
        if self._problem:
            return self._problem
        if self.running is None and not self._hello:
            return self._describe_failed_start()
        return f"{self.name} is lost: its agent ended with {self._exitcode} without a report"

    def _describe_failed_start(self) -> str:
        if self._is_stopped:
            return ""
        lines = [line for line in self._last_lines if line]
        why = f": {'; '.join(lines)}" if lines else ", and it has written nothing"
        return f"{self.name}: the agent could not be started ({self._exitcode}){why}"

    def _handle_record(self, record: dict[str, Any]) -> None:
        kind = record.get("kind")
        if kind == "hello" and self.state is AgentState.STARTING:
            self._hello = record
            self._last_lines.clear()
            self.state = AgentState.READY
        elif kind == "running":
            self.running = record
        elif kind == "failure":
            self.failure = record
        elif kind == "end":
            self.code = int(record["code"])
