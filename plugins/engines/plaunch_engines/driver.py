"""Runs a job on the nodes of an engine: starts agents, follows them, and decides how it ended."""

from __future__ import annotations

import math
import os
import select
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from plaunch.cli import STDERR as CONSOLE
from plaunch.durations import milliseconds

from plaunch_engines.agents import AgentState
from plaunch_engines.delivery import deliver
from plaunch_engines.ending import CommandFacts, conclude, is_over
from plaunch_engines.output import STDERR, STDOUT, format_elapsed
from plaunch_engines.repeated import RepeatedMessages
from plaunch_engines.started_nodes import StartedNodes
from plaunch_engines.suspension import SuspensionMeter, awake_or_not

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from plaunch.engines import Engine
    from plaunch.errors import PlaunchError

    from plaunch_engines.agents import ConnectedNode
    from plaunch_engines.ending import Ending, NodeFacts
    from plaunch_engines.node_files import NodeFiles
    from plaunch_engines.output import MergedOutput
    from plaunch_engines.plan import JobPlan

_INTERVAL = 0.2  # seconds between two checks of what no descriptor announces
_TOO_FEW_WAIT = 3.0  # seconds for agents to end by themselves, after a node is lost for ever
_SPARES_WAIT = 2.0  # seconds for nodes without workers to learn that the job is over
# Seconds without a byte of an agent whose workers have ended: longer than a network may be silent
# before the connection ends by itself.
_LAST_WAIT = 45.0
_STOP_WAIT = 60.0  # the same, longer than the workers' grace, to stop workers of a failed job
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_FORWARDED = (*STOPS, signal.SIGUSR1, signal.SIGUSR2)
_KILL_AFTER = 3  # stop signals after which agents are killed: the first stops, the second hurries


@dataclass
class _Job:
    """What is known of the job as a whole."""

    signals: list[int] = field(default_factory=list)  # the stop signals so far
    signalled_at: float = math.inf  # when the first one arrived
    error: PlaunchError | None = None  # why this command ends the job
    error_at: float = math.inf  # when that happened which it ends the job for
    over_at: float = math.inf  # when the job was seen to be over
    is_released: bool = False  # whether spares that have not noticed the end were stopped


class JobDriver:
    """Runs one job to its end.

    Args:
        engine: starts agents.
        plan: what to start.
        output: where lines of the nodes go.
        files: gets them as well, for each node; None if there are no such files.
        clock: a monotonic clock, in seconds.
        pause_clock: the same, but also while the machine is asleep.
    """

    def __init__(
        self,
        engine: Engine,
        plan: JobPlan,
        output: MergedOutput,
        *,
        files: NodeFiles | None = None,
        clock: Callable[[], float] = time.monotonic,
        pause_clock: Callable[[], float] = awake_or_not,
    ) -> None:
        self._engine = engine
        self._files = files
        self._plan = plan
        self._output = output
        self._clock = clock
        self._nodes = StartedNodes(engine, plan, output.say, clock)
        self._job = _Job()
        self._repeated = RepeatedMessages(clock)
        self._restarted = 0  # the last round that has followed a restart, of those that are shown
        self._suspension = SuspensionMeter(plan.silence_limit, pause_clock)
        self._began = self._checked_at = clock()
        self._is_reading = True
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> int:
        """Start all agents, and return the exit code of the job when all have ended.

        Raises:
            PlaunchError: the job could not be started, or lost too many nodes.
        """
        before = {signum: signal.signal(signum, _ignore) for signum in handled(_FORWARDED)}
        previous_fd = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        try:
            self._nodes.start(range(self._plan.count))
            while not self._nodes.have_ended():
                self._wait()
                self._advance()
            self._write_messages(is_last=True)
            return self._report(conclude(self._nodes.facts(), self._command_facts()))
        finally:
            self._engine.close()
            self._nodes.close()
            self._write_messages(is_last=True)
            deliver(
                self._output, self._wake_read, STOPS, CONSOLE.say,
                is_stopped=bool(self._job.signals),
            )  # fmt: skip
            if self._files is not None and self._output.is_written():
                self._files.close()
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
        self._write_messages()

    def _write_messages(self, *, is_last: bool = False) -> None:
        """Write messages that have waited for equal ones of other nodes long enough, or all."""
        for name, text in self._repeated.due(is_last=is_last):
            self._output.write(STDERR, name, text)
        # Where the time went: that of one node is enough, although others differ by a little.
        for node in self._nodes:
            while node.restarted:
                record = node.restarted.pop(0)
                if record["round"] > self._restarted:
                    self._restarted = record["round"]
                    self._output.say(record["text"])

    def _write(self, node: ConnectedNode, texts: Iterable[tuple[bool, bytes]]) -> None:
        """Write what a node has written."""
        for is_error, text in texts:
            if self._files is not None:
                self._files.write(node.name, text, is_error=is_error)
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
                self._job.signalled_at = min(self._job.signalled_at, self._clock())
                if len(self._job.signals) == 1 and not self._nodes.are_running():
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

    # --- steps ------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Do what the present state of the nodes requires."""
        now = self._clock()
        self._check_suspension(now)
        missing = self._update()
        self._nodes.show_reports()
        if self._is_open():
            self._nodes.handle_losses()
            if not self._nodes.lost and (error := self._nodes.give_places()) is not None:
                self._give_up(error, now)
                self._kill_all()
        if not self._is_open():
            self._nodes.stop_waiting()
            self._end_the_rest(now)
        if missing:
            self._output.say(
                "the end of the workers' output may be missing: an agent or its connection has "
                f"ended before it was complete ({', '.join(missing)})",
                "WARNING",
            )
        self._show_status()

    def _check_suspension(self, now: float) -> None:
        """End the job if this command did not run for so long that agents have ended for that."""
        limit, late = self._plan.silence_limit, self._suspension.measure()
        # The clock stands still while the machine is asleep.
        began = max(now - max(late - limit, 0.0), self._checked_at)
        self._checked_at = now
        ended = [node for node in self._nodes.facts() if node.is_silenced]
        if late >= limit or (ended and self._suspension.longest >= limit / 2):
            self._give_up(self._suspension.error(), began)

    def _is_open(self) -> bool:
        """Whether the job has not ended, so that nodes may join it."""
        is_ending = self._job.signals or self._job.error is not None or self._nodes.lost
        return not is_ending and not is_over(self._nodes.facts())

    def _update(self) -> list[str]:
        """Take note of agents that have ended; return what may be missing of their output."""
        running = [node for node in self._nodes if node.state is not AgentState.ENDED]
        for node in running:
            self._write(node, node.update(is_read=self._is_reading, hold=self._output.hold))
        ended = [node for node in running if node.state is AgentState.ENDED]
        return [text for node in ended if (text := node.describe_missing())]

    def _end_the_rest(self, now: float) -> None:
        """End agents that do not end by themselves, once the job is over.

        Agents whose workers run are only ended if the job has failed or was stopped, so that they
        have to stop their workers. All limits begin anew with everything that an agent writes.
        """
        self._job.over_at = min(self._job.over_at, now)
        error = self._command_facts().error
        must_stop = (
            bool(self._job.signals)
            or error is not None
            or any(facts.code and facts.is_result for facts in self._nodes.facts())
        )
        last = max((node.round for node in self._nodes), default=-1)
        for node in self._nodes:
            limit = _LAST_WAIT
            if node.has_workers and (must_stop or node.round < last):
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
        if self._job.is_released or self._job.signals:
            return
        if now - self._job.over_at < (_SPARES_WAIT if error is None else _TOO_FEW_WAIT):
            if self._nodes.lost:
                self._nodes.handle_losses()  # there may be more of them
            return
        self._job.is_released = True
        for node in self._nodes:
            if error is not None:
                node.leave(f"the job ends: {error}")
            elif node.running is None:
                node.leave("the job is over")

    def _give_up(self, error: PlaunchError, at: float) -> None:
        """End the job for a reason of this command; the first one counts."""
        if self._job.error is None:
            self._job.error, self._job.error_at = error, at

    def _kill_all(self) -> None:
        for node in self._nodes:
            node.stop()

    # --- result -----------------------------------------------------------------------------------

    def _command_facts(self) -> CommandFacts:
        job, lost = self._job, self._nodes.lost
        error, at, code = job.error, job.error_at, 0
        if error is None and lost:
            error, at = self._nodes.describe_loss(), lost[0].ended_at
            code = (lost[0].code or 0) if lost[0].has_left else 0
        return CommandFacts(
            signum=job.signals[0] if job.signals else None,
            signalled_at=job.signalled_at,
            error=error,
            error_at=at,
            error_code=code or (0 if error is None else error.exit_code),
        )

    def _report(self, ending: Ending) -> int:
        """Return the exit code, after a report of why it is not 0.

        Raises:
            PlaunchError: this command has ended the job.
        """
        # Accounts of the time differ by tenths of a second: that of one node is enough.
        for text in next(filter(None, (node.last_messages.texts for node in self._nodes)), ()):
            CONSOLE.say_last(text)
        if ending.failure is not None:
            self._output.say(_describe_failure(ending, self._nodes.facts()), "ERROR")
        if ending.error is not None:
            if ending.code == ending.error.exit_code:
                raise ending.error
            self._output.say(str(ending.error), "ERROR")
        return ending.code

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


def _describe_failure(ending: Ending, nodes: Sequence[NodeFacts]) -> str:
    """Return the report of a failure, after the names of its nodes if the text does not say that.

    Reports about workers name the host, and what all nodes report is the fault of none. Nodes whose
    loss has led to it come first.
    """
    failure = ending.failure
    if failure is None:
        return ""
    names = [node.name for node in nodes if node.failure and node.failure.text == failure.text]
    is_known = failure.is_of_workers or len(names) == len(nodes)
    text = failure.text if is_known else f"{', '.join(names)}: {failure.text}"
    return "; ".join([*(node.end for node in ending.lost), text])


def handled(signals: Sequence[signal.Signals]) -> list[signal.Signals]:
    """Return the signals to handle: all but a SIGHUP that is ignored, as with nohup.

    A launch without an engine does the same. SIGINT is ignored in the background of a script.
    """
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [each for each in signals if not (is_ignored and each is signal.SIGHUP)]


def _ignore(signum: int, frame: object) -> None:
    """Let the wake-up descriptor report the signal."""
