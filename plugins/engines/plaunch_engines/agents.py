"""One node of a job, as the command sees it: the agent's state, output and end."""

from __future__ import annotations

import enum
import json
import math
import os
import sys
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plaunch import __version__
from plaunch.rendezvous import JobOutcome
from plaunch.texts import printable
from plaunch_network import join_host_port

from plaunch_engines import records
from plaunch_engines.agent_streams import AgentStreams
from plaunch_engines.ending import FailureRecords, NodeFacts
from plaunch_engines.node_network import NodeNetwork

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from plaunch.engines import AgentHandle

    from plaunch_engines.plan import JobPlan

_LAST_LINES = 5
_MAX_SHOWN = 500  # characters of such a line
_STREAM_WAIT = 2.0  # seconds without output, after the exit of an agent whose streams stay open


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
        code: the exit code that the agent has reported; None if it has not.
        running: the record of its last round, or None.
        network: what it has reported of its network.
        has_ended_workers: whether its workers have ended, and no round follows on this node.
        active_at: when something was read from it, or could have been but for a full output.
        news: how many records and ends of streams were read.
        is_counted: whether its loss has been handled.
        last_messages: what it wants to be shown below the report.
        restarted: the records of its restarts that were not handled.
    """

    def __init__(
        self, index: int, handle: AgentHandle, ready_until: float, clock: Callable[[], float]
    ) -> None:
        self.index = index
        self.state = AgentState.STARTING
        self.code: int | None = None
        self.running: dict[str, Any] | None = None
        self.network = NodeNetwork()
        self.has_ended_workers = False
        self.active_at = clock()
        self.news = 0
        self.is_counted = False
        self.last_messages = records.LastMessages()
        self.restarted: list[dict[str, Any]] = []
        self._handle = handle
        self._ready_until = ready_until
        self._clock = clock
        self._hello: dict[str, Any] = {}
        self._failure = FailureRecords()
        self._end: dict[str, Any] = {}
        self._round_at = 0.0
        self._ended_at = math.inf
        self._exitcode: int | None = None
        self._exited_at = 0.0
        self._has_begun = self._is_stopped = self._is_replaced = False
        self._facts: NodeFacts | None = None  # until something changes
        self._problem = ""
        self._streams = AgentStreams(handle, clock)
        self._has_whole_output = False
        self._lines = 0  # of its output, so far
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)

    @property
    def name(self) -> str:
        """The name of the node, which its scheduler may have given."""
        return printable(self._handle.node, _MAX_SHOWN)

    @property
    def address(self) -> str:
        """The address at which the other nodes reach this one."""
        return self._handle.address or str(self._hello.get("host", ""))

    def endpoint(self) -> str:
        """Return an endpoint on this node whose port is free."""
        return join_host_port(self.address, self._hello["port"])

    @property
    def is_alive(self) -> bool:
        """Whether its agent has not ended and is not being killed."""
        return self.state is not AgentState.ENDED and not self._is_stopped

    @property
    def round(self) -> int:
        """The last round in which it has had workers; -1 before, 0 if each agent counts alone."""
        if self.running is None:
            return -1
        return int(self.running["round"]) if self.running["is_job_wide"] else 0

    @property
    def has_workers(self) -> bool:
        """Whether workers may run on it."""
        return self.running is not None and not self.has_ended_workers and self.code is None

    def fds(self) -> list[int]:
        """Return the descriptors to read."""
        return self._streams.fds()

    def read(self, fd: int) -> Iterator[tuple[bool, bytes]]:
        """Read a descriptor; yield the text, each block with whether it is of stderr."""
        pieces = self._streams.read(fd)
        self.active_at = max(self.active_at, self._streams.active_at)
        yield from self._take(fd, pieces)

    def _take(
        self, fd: int, pieces: Sequence[records.Piece] | None
    ) -> Iterator[tuple[bool, bytes]]:
        """Handle the records and yield the text; None is the end of the stream."""
        if pieces is None:
            self.news += 1
            pieces = self._streams.end(fd)
        is_error = self._streams.is_error(fd)
        for piece in pieces:
            if not isinstance(piece, bytes):
                self.news += 1
                self._handle_record(piece)
            elif self._shows(piece, is_error=is_error):
                self._lines += piece.count(b"\n")
                yield is_error, piece

    def _shows(self, text: bytes, *, is_error: bool) -> bool:
        """Whether text is shown."""
        if self.state is AgentState.STARTING:  # it explains why the agent did not start
            if is_error:
                lines = text.decode(errors="replace").splitlines()[-_LAST_LINES:]
                self._last_lines += (printable(line.rstrip(), _MAX_SHOWN) for line in lines)
            return False
        if is_error:  # what ssh or srun write about the exit code adds nothing to the report
            return self.code is None
        return self.state is not AgentState.READY  # before the settings there are no workers

    def update(
        self, *, is_read: bool, hold: Callable[[bool], float] | None = None
    ) -> Iterator[tuple[bool, bytes]]:
        """Take note of the agent's exit, once its streams have ended; yield the last text.

        Yields also lines that have no end for a while, such as prompts, which the next text
        continues.

        A process that has left the job may hold the streams open. Then they are closed when there
        is nothing to read for a while.

        Args:
            is_read: whether its streams are being read; they are not while the output is full.
            hold: how long a line waits for its end; see `AgentStreams.take_prompts`.
        """
        if self.state is AgentState.ENDED:
            return
        if hold is not None and is_read and self.state is AgentState.RUNNING:
            for fd, text in self._streams.take_prompts(hold):
                yield from self._take(fd, [text])
        now = self._clock()
        if not is_read:
            self.active_at = now
        if self._exitcode is None:
            self._exitcode = self._handle.poll()
            self._exited_at = now
        if self._exitcode is None:
            return
        is_silent = now - max(self._exited_at, self.active_at) >= _STREAM_WAIT
        if is_silent and not self._streams.has_unread():
            for fd in self._streams.fds():
                yield from self._take(fd, None)
        if self._streams.have_ended:
            self.state = AgentState.ENDED
            self._ended_at = min(self._ended_at, now)
            self._facts = None

    def is_overdue(self) -> bool:
        """Whether it should have been ready by now."""
        return self.state is AgentState.STARTING and self._clock() >= self._ready_until

    def problem(self, plan: JobPlan) -> str:
        """Return why the job cannot start on this node, in one line; empty if it can."""
        if self._problem:
            return self._problem
        if self.state is AgentState.ENDED:
            return self._describe_failed_start()
        if self.is_overdue():
            limit = f"{plan.start_timeout:g} s (--start-limit)"
            said = (
                f": {self._last_lines[-1]}" if self._last_lines else ", and it has written nothing"
            )
            describe = getattr(self._handle, "describe_silence", None)
            why = f"; {describe()}" if describe is not None else ""
            return f"{self.name}: no agent has reported within {limit}{said}{why}"
        return self.difference(plan)

    def difference(self, plan: JobPlan) -> str:
        """Return what a node that is ready lacks, or has in another version than this machine."""
        if self.state is not AgentState.READY:
            return ""
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

    def probe(self, endpoints: Sequence[str], token: bytes, run_id: str) -> None:
        """Let a node that is ready try to reach a store at each endpoint."""
        self.network.ask(endpoints)
        self._streams.expect(is_error=True)
        probe = {"endpoints": [*endpoints], "token": os.fsdecode(token), "run_id": run_id}
        self._send(probe=probe, nonce=self._streams.nonce)

    def configure(self, settings: Mapping[str, object]) -> None:
        """Send the settings, with which the agent begins, and the nonce of its records.

        What a login shell has written to standard output is discarded, also a last line that it has
        not ended.
        """
        self._streams.discard_stdout()
        self._streams.expect()
        self._send(**settings, nonce=self._streams.nonce)
        self.state = AgentState.RUNNING
        self._has_begun, self._facts = True, None

    def leave(self, reason: str) -> None:
        """Let a running agent stop its workers and end, however far it is with that already."""
        if self.state is AgentState.RUNNING:
            self._send(leave=reason)

    def signal(self, signum: int) -> None:
        """Let a running agent send a signal to itself."""
        if self.state is AgentState.RUNNING:
            self._send(signal=int(signum))

    def _send(self, **message: object) -> None:
        self._handle.write(json.dumps(message).encode() + b"\n")

    def stop(self, problem: str = "") -> None:
        """End the agent without grace.

        Args:
            problem: why this node cannot take part in a job that runs.
        """
        self._is_stopped = True
        self._problem = self._problem or problem
        self._facts = None
        self._handle.stop()

    def close(self) -> None:
        """Release its handle."""
        self._handle.close()

    def describe_missing(self) -> str:
        """Return what may be missing of the workers' output, once the agent has ended; or empty."""
        if self.running is None or self._has_whole_output:
            return ""
        return f"{self.name} after {self._lines} lines"

    def note_replaced(self) -> None:
        """Take note that another node was started in its place."""
        self._is_replaced, self._facts = True, None

    def facts(self) -> NodeFacts:
        """Return what is known of it."""
        if self._facts is None:
            self._facts = self._collect_facts()
        return self._facts

    def _collect_facts(self) -> NodeFacts:
        running, end = self.running or {}, self._end
        facts = NodeFacts(
            name=self.name,
            has_begun=self._has_begun,
            has_ended=self.state is AgentState.ENDED,
            ended_at=self._ended_at,
            code=self.code,
            has_succeeded=end.get("has_succeeded", False),
            verdict=JobOutcome(end["verdict"]) if end.get("verdict") else None,
            failure=self._failure.last,
            round=self.round if running else None,
            size=running.get("nodes", 0),
            round_at=self._round_at,
            is_replaced=self._is_replaced,
        )
        return replace(facts, end=self._describe_end(facts))

    def _describe_end(self, facts: NodeFacts) -> str:
        """Describe how a node was lost, left or excluded; empty if it was not."""
        if facts.is_excluded or facts.is_silenced:
            what = "was excluded from the job" if facts.is_excluded else "has ended its workers"
            return f"{self.name} {what}" + (f": {facts.failure.text}" if facts.failure else "")
        if facts.has_left:
            return f"{self.name} has left the job: its agent ended with {self.code}"
        if not facts.is_lost:
            return ""
        if self._problem:
            return self._problem
        if not self._hello:
            return self._describe_failed_start()
        return f"{self.name} is lost: its agent ended with {self._exitcode} without a report"

    def _describe_failed_start(self) -> str:
        if self._is_stopped:
            return self._problem
        lines = [line for line in self._last_lines if line]
        why = f": {'; '.join(lines)}" if lines else ", and it has written nothing"
        return f"{self.name}: the agent could not be started ({self._exitcode}){why}"

    def _handle_record(self, record: dict[str, Any] | records.InvalidRecord) -> None:
        if self._problem:
            return
        self._facts = None
        if isinstance(record, records.InvalidRecord):
            self.stop(f"{self.name}: its agent has sent an invalid record: {record.problem}")
            return
        match record["kind"]:
            case "hello" if self.state is AgentState.STARTING:
                self._hello = records.printable_record(record)
                self.network.add_hello(self._hello)
                self._last_lines.clear()
                self.state = AgentState.READY
            case "probed":
                self.network.add_answer(records.printable_record(record))
            case "running":
                self.running, self._round_at = record, self._clock()
            case "restarted":
                self.restarted.append(records.printable_record(record))
            case "workers_ended":
                self.has_ended_workers = True
            case "failure_text" | "failure":
                self._failure.add(record, self._clock())
            case "last_message":
                self.last_messages.add(record["text"], is_more=record["is_more"])
            case "end":
                self.code, self._end = record["code"], record
                self._ended_at = self._clock()
            case "end_of_output":
                self._has_whole_output = True
        if self._failure.is_too_long:
            self.stop(f"{self.name}: its agent has sent a failure without an end")
