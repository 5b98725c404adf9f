"""Runs a job on the nodes of an engine: starts agents, follows them, and decides how it ended."""

from __future__ import annotations

import math
import os
import select
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from plaunch.cli import STDERR as CONSOLE
from plaunch.durations import milliseconds
from plaunch.errors import ExitCode, PlaunchError

from plaunch_engines.agents import AgentState, ConnectedNode
from plaunch_engines.delivery import deliver
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
_LAST_WAIT = 10.0  # seconds without a byte of an agent whose workers have ended
_STOP_WAIT = 60.0  # the same, longer than the workers' grace, to stop workers of a failed job
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
    over_at: float = math.inf  # when the job was seen to be over
    is_released: bool = False  # whether spares that have not noticed the end were stopped


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
            self._engine.close()
            for node in self._nodes:
                node.close()
            for name, text in self._repeated.due(is_last=True):
                self._output.write(STDERR, name, text)
            deliver(
                self._output, self._wake_read, STOPS, CONSOLE.say,
                is_stopped=bool(self._job.signals),
            )  # fmt: skip
            signal.set_wakeup_fd(previous_fd)
            for signum, handler in before.items():
                signal.signal(signum, handler)
            os.close(self._wake_read)
            os.close(self._wake_write)

    # --- events -----------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Read what the nodes write until something else has happened, or for a while."""
        until = self._clock() + _INTERVAL
        poller = select.poll()
        poller.register(self._wake_read, select.POLLIN)
        poller.register(self._output.fileno(), select.POLLIN)
        self._is_reading = not self._output.is_full()
        by_fd = {}
        if self._is_reading:
            by_fd = {fd: node for node in self._nodes for fd in node.fds()}
        for fd in by_fd:
            poller.register(fd, select.POLLIN)
        has_news = False
        while not has_news and (left := until - self._clock()) > 0:
            for fd, _ in poller.poll(milliseconds(left)):
                if fd == self._wake_read:
                    self._take_signals(os.read(fd, 4096))
                    has_news = True
                elif fd in by_fd:
                    node = by_fd[fd]
                    news = node.news
                    self._write(node, node.read(fd))
                    has_news |= node.news > news
            has_news |= self._output.is_full() is self._is_reading
        for name, text in self._repeated.due():
            self._output.write(STDERR, name, text)

    def _write(self, node: ConnectedNode, texts: Iterable[tuple[bool, bytes]]) -> None:
        """Write what a node has written."""
        for is_error, text in texts:
            if self._plan.count == 1:
                self._output.write(STDERR if is_error else STDOUT, "", text)
            elif not is_error:
                self._output.write(STDOUT, node.name, text)
            else:
                for name, part in self._repeated.feed(node.name, text):
                    self._output.write(STDERR, name, part)

    def _take_signals(self, numbers: bytes) -> None:
        for number in numbers:
            if number in STOPS:
                self._job.signals.append(number)
                if len(self._job.signals) == 1 and not self._is_running():
                    self._kill_all()
                elif len(self._job.signals) >= _KILL_AFTER:
                    self._output.say(
                        "the agents are killed; the end of their output may be missing", "WARNING"
                    )
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
        missing = self._update()
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
        if missing:
            self._output.say(
                "the end of the workers' output may be missing: an agent or its connection has "
                f"ended before it was complete ({', '.join(missing)})",
                "WARNING",
            )
        self._show_status()

    def _update(self) -> list[str]:
        """Take note of agents that have ended; return what may be missing of their output."""
        running = [node for node in self._nodes if node.state is not AgentState.ENDED]
        for node in running:
            self._write(node, node.update(is_read=self._is_reading))
        ended = [node for node in running if node.state is AgentState.ENDED]
        return [text for node in ended if (text := node.describe_missing())]

    def _end_the_rest(self, now: float) -> None:
        """End agents that do not end by themselves, once the job is over.

        Agents whose workers run are only ended if the job has failed, so that they have to stop
        their workers. All limits begin anew with everything that an agent writes.
        """
        self._job.over_at = min(self._job.over_at, now)
        has_failed = self._job.error is not None or any(
            node.code and not node.is_replaceable() for node in self._nodes
        )
        last = max((node.round for node in self._nodes), default=-1)
        for node in self._nodes:
            limit = _LAST_WAIT
            if node.has_workers and (has_failed or node.round < last):
                limit = _STOP_WAIT + self._plan.shutdown_timeout
            elif node.has_workers:
                continue
            if now - max(node.active_at, self._job.over_at) >= limit and node.is_alive:
                self._output.say(
                    f"{node.name}: its agent is killed, as it has neither ended nor written "
                    f"anything for {limit:g} s since the job is over",
                    "WARNING",
                )
                node.stop()
        if not self._job.is_released and now - self._job.over_at >= _SPARES_WAIT:
            self._job.is_released = True
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
        node.configure(self._plan.settings_of(node.index, node.address, self._job.endpoint))

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
