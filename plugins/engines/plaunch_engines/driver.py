"""Runs a job on the nodes of an engine: starts agents, follows them, and decides how it ended."""

from __future__ import annotations

import json
import math
import os
import select
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from plaunch.durations import milliseconds
from plaunch.errors import ExitCode, PlaunchError

from plaunch_engines.agents import AgentState, ConnectedNode
from plaunch_engines.output import STDERR, STDOUT, format_elapsed
from plaunch_engines.plan import count_left
from plaunch_engines.repeated import RepeatedMessages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from plaunch.engines import Engine

    from plaunch_engines.output import MergedOutput
    from plaunch_engines.plan import JobPlan

_INTERVAL = 0.2  # seconds between two checks of what no descriptor announces
_PROBLEMS_WAIT = 3.0  # seconds for other nodes to report problems, after the first problem
_TOO_FEW_WAIT = 3.0  # seconds for agents to end by themselves, after a node is lost for ever
_SPARES_WAIT = 2.0  # seconds for nodes without workers to learn that the job is over
_LAST_WAIT = 10.0  # seconds for agents to end after the job is over, and after `stop`
_CONSOLE_WAIT = 5.0  # seconds for a slow reader at the end
_MAX_REPLACED = 3  # replacements for each node of the job, in all
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_FORWARDED = (*STOPS, signal.SIGUSR1, signal.SIGUSR2)
_KILL_AFTER = 3  # stop signals after which agents are killed: the first stops, the second hurries


class NodesLostError(PlaunchError):
    """Nodes are lost, and too few are left for the job."""

    exit_code = ExitCode.RENDEZVOUS_TIMEOUT


class StartError(PlaunchError):
    """Agents cannot be started on all nodes."""

    exit_code = ExitCode.RENDEZVOUS_TIMEOUT


@dataclass
class _Job:
    """What is known of the job as a whole."""

    endpoint: str = ""
    signals: list[int] = field(default_factory=list)  # the stop signals so far
    error: PlaunchError | None = None  # why this command ends the job
    problem_at: float = math.inf  # when a node could not be started
    replaced: int = 0
    deadline: float = math.inf  # when agents that are left are killed
    release_at: float = math.inf  # when spares that have not noticed the end are stopped


class JobDriver:
    """Runs one job to its end.

    Args:
        engine: starts agents.
        plan: what to start.
        output: where lines of the nodes go.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        engine: Engine,
        plan: JobPlan,
        output: MergedOutput,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._plan = plan
        self._output = output
        self._clock = clock
        self._nodes: list[ConnectedNode] = []
        self._job = _Job()
        self._repeated = RepeatedMessages(clock)
        self._began = clock()
        self._is_reading = True
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> int:
        """Start all agents, and return the exit code of the job when all have ended.

        Raises:
            PlaunchError: the job could not be started, or lost too many nodes.
        """
        before = {signum: signal.signal(signum, _ignore) for signum in _FORWARDED}
        previous_fd = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        try:
            self._start(range(self._plan.count))
            while any(node.state is not AgentState.ENDED for node in self._nodes):
                self._wait()
                self._advance()
            return self._conclude()
        finally:
            signal.set_wakeup_fd(previous_fd)
            for signum, handler in before.items():
                signal.signal(signum, handler)
            self._engine.close()
            for node in self._nodes:
                node.close()
            self._output.finish(_CONSOLE_WAIT)
            os.close(self._wake_read)
            os.close(self._wake_write)

    # --- events -----------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Wait until something has happened, and read it."""
        poller = select.poll()
        poller.register(self._wake_read, select.POLLIN)
        poller.register(self._output.fileno(), select.POLLIN)
        by_fd = {}
        self._is_reading = not self._output.is_full()
        if self._is_reading:
            by_fd = {fd: node for node in self._nodes for fd in node.fds()}
        for fd in by_fd:
            poller.register(fd, select.POLLIN)
        for fd, _ in poller.poll(milliseconds(_INTERVAL)):
            if fd == self._wake_read:
                self._take_signals(os.read(fd, 4096))
            elif fd in by_fd:
                self._read(by_fd[fd], fd)

    def _read(self, node: ConnectedNode, fd: int) -> None:
        name = node.name if self._plan.count > 1 else ""
        for is_error, line in node.read(fd):
            if is_error and self._repeated.has(node.name, line):
                continue
            self._output.write(STDERR if is_error else STDOUT, name, line)

    def _take_signals(self, numbers: bytes) -> None:
        for number in numbers:
            if number in STOPS:
                self._job.signals.append(number)
                if len(self._job.signals) == 1 and not self._is_running():
                    self._kill_all()
                elif len(self._job.signals) >= _KILL_AFTER:
                    self._output.say("the agents are killed", "WARNING")
                    self._kill_all()
                else:
                    self._send_signal(number)
            elif number:
                self._send_signal(number)

    def _send_signal(self, signum: int) -> None:
        for node in self._nodes:
            node.signal(signum)

    def _is_running(self) -> bool:
        return any(node.state is AgentState.RUNNING for node in self._nodes)

    # --- steps ------------------------------------------------------------------------------------

    def _start(self, indices: Iterable[int]) -> None:
        wanted = list(indices)
        handles = self._engine.start(self._plan.command, wanted)
        until = self._clock() + self._plan.start_timeout
        self._nodes += [
            ConnectedNode(index, handle, until, self._clock)
            for index, handle in zip(wanted, handles, strict=True)
        ]

    def _advance(self) -> None:
        """Do what the present state of the nodes requires."""
        now = self._clock()
        for node in self._nodes:
            node.update(is_read=self._is_reading)
        if not self._is_reading:  # agents may be waiting for the reader of the output
            self._job.deadline = max(self._job.deadline, now + _LAST_WAIT)
        if now >= self._job.deadline:
            self._kill_all()
        if not self._job.endpoint:
            self._begin()
            return
        is_open = not self._job.signals and self._job.error is None and not self._is_over()
        # Spares that began with the others could take the places of the first nodes.
        has_begun = any(node.running or node.state is AgentState.ENDED for node in self._nodes)
        for node in self._nodes:
            if node.state not in (AgentState.STARTING, AgentState.READY):
                continue
            if not is_open:
                node.stop()
            elif problem := node.problem(self._plan):
                node.stop(problem)
            elif node.state is AgentState.READY and has_begun:
                self._configure(node)
        if is_open:
            self._replace_lost()
        elif not self._job.signals:
            self._end_the_rest(now)
        self._show_status()

    def _end_the_rest(self, now: float) -> None:
        """Bound the time in which the other agents end, once the job is over."""
        if self._job.deadline == math.inf:
            self._job.deadline = now + _LAST_WAIT + self._plan.shutdown_timeout
            self._job.release_at = now + _SPARES_WAIT
        if now >= self._job.release_at:
            self._job.release_at = math.inf
            for node in self._nodes:
                if node.running is None:
                    node.signal(signal.SIGTERM)

    def _begin(self) -> None:
        """Configure all nodes once all are ready; end the job if one cannot be."""
        problems = [text for node in self._nodes if (text := node.problem(self._plan))]
        if problems:
            now = self._clock()
            self._job.problem_at = min(self._job.problem_at, now)
            is_complete = all(
                node.state is not AgentState.STARTING or node.is_overdue() for node in self._nodes
            )
            if is_complete or now - self._job.problem_at >= _PROBLEMS_WAIT:
                if self._job.error is None and not self._job.signals:
                    self._job.error = StartError(self._plan.describe_problems(problems))
                self._kill_all()
        elif all(node.state is AgentState.READY for node in self._nodes):
            self._job.endpoint = self._plan.endpoint or self._nodes[0].endpoint()
            self._output.say(self._plan.describe(self._job.endpoint))
            for node in self._nodes:
                if node.index < self._plan.max_nodes:
                    self._configure(node)

    def _configure(self, node: ConnectedNode) -> None:
        settings = self._plan.settings_of(node.index, node.address, self._job.endpoint)
        node.configure(json.dumps(settings).encode() + b"\n")

    def _is_over(self) -> bool:
        """Whether an agent has ended with the result of the job, so that the others will."""
        return any(node.code is not None and not node.is_replaceable() for node in self._nodes)

    def _replace_lost(self) -> None:
        for node in self._nodes:
            if node.state is not AgentState.ENDED or node.is_counted:
                continue
            node.is_counted = True
            self._output.say(node.describe_end(), "WARNING")
            left = sum(other.state is not AgentState.ENDED for other in self._nodes)
            problem = self._replace(node)
            if not problem:
                continue
            self._output.say(
                f"{node.name} is not replaced: {problem}; {count_left(left)}", "WARNING"
            )
            if left < self._plan.min_nodes:
                node.lost_at = self._clock()
        lost = [node for node in self._nodes if node.lost_at is not None]
        if lost and all(self._clock() - (node.lost_at or 0.0) >= _TOO_FEW_WAIT for node in lost):
            left = sum(node.state is not AgentState.ENDED for node in self._nodes)
            self._job.error = NodesLostError(
                self._plan.describe_loss([node.name for node in lost], left)
            )
            self._send_signal(signal.SIGTERM)

    def _replace(self, node: ConnectedNode) -> str:
        """Start a node in the place of another one; return why that is impossible, or ""."""
        if self._plan.is_static:
            return "nodes of the rendezvous backend 'static' cannot be replaced"
        if not self._engine.can_replace:
            return f"--on={self._plan.engine} has no other node"
        if self._job.replaced >= _MAX_REPLACED * self._plan.count:
            return f"{self._job.replaced} nodes have been replaced already"
        self._job.replaced += 1
        try:
            self._start([max(other.index for other in self._nodes) + 1])
        except PlaunchError as error:
            return str(error)
        self._output.say(f"{self._nodes[-1].name} is started in the place of {node.name}")
        return ""

    def _kill_all(self) -> None:
        for node in self._nodes:
            node.stop()
        self._job.deadline = math.inf

    # --- result -----------------------------------------------------------------------------------

    def _conclude(self) -> int:
        """Return the exit code, after the report of the first failure."""
        if any(node.code == 0 for node in self._nodes):
            return 0
        if self._job.signals and not any(node.code for node in self._nodes):
            return 128 + self._job.signals[0]
        failure = _first_failure(self._nodes)
        if failure is not None:
            self._output.say(_describe_failure(failure, self._nodes), "ERROR")
            return int(failure["code"])
        if self._job.error is not None:
            raise self._job.error
        codes = [node.code for node in self._nodes if node.code]
        if codes:
            return codes[0]
        raise NodesLostError("; ".join(node.describe_end() for node in self._nodes))

    def _show_status(self) -> None:
        running = [node for node in self._nodes if node.running is not None]
        text = f"{self._plan.job}: {format_elapsed(self._clock() - self._began)}"
        if running:
            last = max((node.running or {} for node in running), key=lambda one: one["round"])
            text += (
                f", {last['workers']} workers on {last['nodes']} nodes, round {last['round']}, "
                f"attempt {last['attempt']}"
            )
        self._output.show(text)


def _first_failure(nodes: Sequence[ConnectedNode]) -> dict[str, Any] | None:
    """Return the report that describes best what failed first."""
    failures = [node.failure for node in nodes if node.failure is not None]
    return max(failures, key=lambda one: (one["is_first"], one["is_of_workers"]), default=None)


def _describe_failure(failure: dict[str, Any], nodes: Sequence[ConnectedNode]) -> str:
    """Return the text of a failure, after the names of its nodes if the text does not say that.

    Reports about workers name the host, and what all nodes report is the fault of none.
    """
    text = str(failure["text"])
    names = [node.name for node in nodes if node.failure and node.failure["text"] == text]
    if failure["is_of_workers"] or len(names) == len(nodes):
        return text
    return f"{', '.join(names)}: {text}"


def _ignore(signum: int, frame: object) -> None:
    """Let the wake-up descriptor report the signal."""
