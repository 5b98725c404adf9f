"""A command that drives agents on nodes: the real `JobDriver`, with simulated agents and links.

The agents of a run play a small job: they report, train in rounds, fail, and end. Their connections
are slow, tear lines apart, fall silent, carry garbage, and break.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from plaunch.errors import PlaunchError
from plaunch_engines.driver import JobDriver
from plaunch_engines.output import STDOUT
from plaunch_engines.plan import JobPlan

from plaunch_testing.simulation.agents import LinkFault, SimulatedAgent
from plaunch_testing.simulation.hub import SimulatedHost, SimulatedProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from plaunch_testing.simulation.modules import SimulatedSystem

__all__ = ["CommandReport", "SimulatedCommand"]

_JOIN_TIMEOUT = 60.0  # seconds until nodes give up, if there are not enough
_FORM_WAIT = 3.0  # seconds for further nodes, once there are enough for a round
# Virtual seconds within which a command ends: an agent may start for a minute, and be killed
# another one after the end of the job.
_BOUND = 600.0
_AFTER_END = 10.0  # seconds after the end in which agents must have ended
_MARK = b"\x1eplaunch"
_NODE_LOST, _CLOSED = 137, 112


@dataclass(frozen=True)
class CommandReport:
    """One run.

    Args:
        seed: that decides it.
        findings: what was wrong.
        history: what has happened.
        code: the exit code; None if it has not ended.
        faults: what was injected.
    """

    seed: int
    findings: Sequence[str]
    history: Sequence[str]
    code: int | None
    faults: Sequence[str] = ()

    def describe(self) -> str:
        """Describe it on one page."""
        lines = [f"seed {self.seed}: {', '.join(self.faults) or 'no faults'}", *self.history]
        return "\n".join(
            [*lines, f"exit code {self.code}", *map("FINDING: {}".format, self.findings)]
        )


class _Output:
    """Keeps what the command shows."""

    def __init__(self, system: SimulatedSystem, note: Callable[[str, str], None]) -> None:
        self.shown: dict[tuple[int, str], bytes] = {}
        self.progressed_at = 0.0
        self._note = note
        self._fds = system.descriptors.pipe()

    def fileno(self) -> int:
        return self._fds[0]

    def is_full(self) -> bool:
        return False

    def hold(self, is_error: bool) -> float:
        return 0.1

    def write(self, fd: int, node: str, text: bytes) -> None:
        self.shown[fd, node] = self.shown.get((fd, node), b"") + text

    def say(self, text: str, level: str = "INFO") -> None:
        self._note("command", f"[{level.lower()}] {text}")

    def show(self, status: str) -> None:
        pass

    def request_end(self) -> None:
        pass

    def is_written(self) -> bool:
        return True

    def losses(self) -> list[object]:
        return []


@dataclass
class SimulatedCommand:
    """One run of the command; also the engine, which starts simulated agents.

    Args:
        system: the operating system, with the hub.
        seed: decides everything.
    """

    system: SimulatedSystem
    seed: int
    history: list[str] = field(default_factory=list)
    agents: list[SimulatedAgent] = field(default_factory=list)
    nodes: int | None = None
    can_replace: bool = False
    is_closed: bool = False

    def __post_init__(self) -> None:
        hub = self.system.hub
        hub.begin(self.seed)
        self.system.begin()
        self._random = random = hub.random
        self._hub = hub
        self.count = random.choice((1, 2, 3, 4))
        self._spares = random.choice((0, 0, 1))
        self._min = random.choice((self.count, max(self.count - 1, 1)))
        self.can_replace = random.choice((False, False, True))
        self._duration = random.uniform(0.5, 20.0)
        self._fails_at = random.choice((None, None, random.uniform(0.1, 20.0)))
        self._code = random.choice((1, 3, 139))
        self._signal_at = random.choice((None, None, None, random.uniform(0.0, 30.0)))
        self._ended_at = 0.0
        self._result: int | BaseException | None = None
        self._outcome = ""  # of the job that the agents play
        self._output = _Output(self.system, self.note)
        self._process = SimulatedProcess(SimulatedHost("command"), 1)
        self._fds_before = 0

    # --- the engine -------------------------------------------------------------------------------

    def start(self, command: Sequence[str], indices: Sequence[int]) -> list[SimulatedAgent]:
        """Start agents."""
        started = []
        for index in indices:
            kinds = (None, None, None, *LinkFault)
            fault = self._random.choice(kinds)
            agent = SimulatedAgent(self.system, f"node{index}", fault, self.note)
            started.append(agent)
        self.agents += started
        return started

    def close(self) -> None:
        """Nothing is left."""
        self.is_closed = True

    # --- the run ----------------------------------------------------------------------------------

    def run(self) -> CommandReport:
        """Run it until the command has ended."""
        hub = self._hub
        command = hub.spawn(self._drive, "command", self._process)
        hub.spawn(self._play_job, "the job")
        if self._signal_at is not None:
            hub.spawn(self._send_signal, "signal")
        is_over = hub.run(lambda: command.is_done, _BOUND)
        hub.run(lambda: False, hub.now + _AFTER_END)  # agents notice the end of the command
        findings = list(self._find(is_over=is_over))
        code = self._result if isinstance(self._result, int) else None
        if isinstance(self._result, PlaunchError):
            code = int(self._result.exit_code)
        faults = [f"{agent.node}: {agent.fault.value}" for agent in self.agents if agent.fault]
        if self._signal_at is not None:
            faults.append(f"SIGTERM after {self._signal_at:.1f} s")
        return CommandReport(self.seed, findings, self.history, code, faults)

    def note(self, where: str, what: str) -> None:
        """Add a line to the history."""
        self.history.append(f"{self._hub.now:9.4f}  {where:<8}  {what}")

    def _drive(self) -> None:
        plan = JobPlan(
            job="job",
            engine="simulated",
            count=self.count + self._spares,
            min_nodes=self._min,
            max_nodes=self.count,
            options=[],
            program=["train.py"],
            script="train.py",
            script_content="9 bytes",
            folder="/work",
            env={},
            endpoint="store:29400",
        )
        output: Any = self._output  # it has what a driver uses
        engine: Any = self
        driver = JobDriver(engine, plan, output, pause_clock=self.system.monotonic)
        try:
            self._result = driver.run()
        except PlaunchError as error:
            self._result = error
        self._ended_at = self._hub.now
        self.note("command", f"ends: {self._result!r}")

    def _send_signal(self) -> None:
        self._hub.sleep(self._signal_at or 0.0)
        if self._process.is_alive and self._result is None:
            self.note("FAULT", "SIGTERM")
            self.system.deliver(self._process, signal.SIGTERM)

    # --- the job ----------------------------------------------------------------------------------

    def _play_job(self) -> None:
        """Let the agents train in rounds, until the job has ended."""
        hub, number = self._hub, 0
        while self._result is None:
            members = self._gather()
            if members is None:
                break
            for agent in members:
                agent.begin_round(number, len(members))
            if self._train(members):
                break
            number += 1
        while self._result is None:  # who comes now finds that the job is over
            hub.sleep(0.1)
            for agent in self.agents:
                if agent.may_train:
                    agent.end(self._outcome, _CLOSED, is_first=False, is_member=False)

    def _gather(self) -> list[SimulatedAgent] | None:
        """Wait for the nodes of a round; None if the job has ended."""
        enough_at: float | None = None
        until = self._hub.now + _JOIN_TIMEOUT
        while self._result is None:
            ready = [agent for agent in self.agents if agent.may_train]
            if ready and self._hub.now >= until:
                self._end(ready, "failed", _NODE_LOST, None)
                return None
            if len(ready) < self._min:
                enough_at = None
            elif enough_at is None:
                enough_at = self._hub.now
            is_late = enough_at is not None and self._hub.now - enough_at >= _FORM_WAIT
            if len(ready) >= self.count or is_late:
                return ready[: self.count]
            self._hub.sleep(0.1)
        return None

    def _train(self, members: list[SimulatedAgent]) -> bool:
        """Train one round; whether the job has ended."""
        hub, began, line = self._hub, self._hub.now, 0
        while True:
            hub.sleep(self._random.uniform(0.1, 1.0))
            alive = [agent for agent in members if agent.may_train]
            if len(alive) < len(members):
                return False
            for agent in members:
                line += 1
                agent.print_line(line)
            if self._fails_at is not None and hub.now - began >= self._fails_at:
                self._end(members, "failed", self._code, self._random.choice(members))
                return True
            if hub.now - began >= self._duration:
                self._end(members, "succeeded", 0, None)
                return True

    def _end(
        self, members: list[SimulatedAgent], verdict: str, code: int, first: SimulatedAgent | None
    ) -> None:
        self.note("job", f"{verdict} with {code}")
        self._outcome = verdict
        for agent in self.agents:
            if agent.may_train:
                agent.end(verdict, code, is_first=agent is first, is_member=agent in members)

    # --- checks -----------------------------------------------------------------------------------

    def _find(self, *, is_over: bool) -> Iterator[str]:
        for task, error in self._hub.errors:
            yield f"errors: {task.name} has raised {error!r}"
        if not is_over:
            yield f"time: not over after {_BOUND:g} s"
            return
        code = self._result if isinstance(self._result, int) else 1
        is_calm = self._signal_at is None and not any(agent.fault for agent in self.agents)
        if code == 0 and self._outcome != "succeeded":
            yield f"codes: 0, but the job has {self._outcome or 'not'} ended"
        expected = {"succeeded": 0, "failed": self._code}
        if is_calm and code != expected.get(self._outcome):
            yield f"codes: {self._result!r}, but the job has {self._outcome}"
        if not self.is_closed or not all(agent.is_closed for agent in self.agents):
            yield "leftovers: the engine or a handle was not closed"
        for agent in self.agents:
            if not agent.has_ended:
                yield f"leftovers: the agent of {agent.node} still runs"
        left = len(self.system.descriptors.open_in(self._process))
        if left:
            yield f"leftovers: {left} descriptors"
        yield from self._find_wrong_output()

    def _find_wrong_output(self) -> Iterator[str]:
        is_alone = self.count + self._spares == 1
        if is_alone and len(self.agents) > 1:
            return  # the output of replaced nodes has no names
        for agent in self.agents:
            name = "" if is_alone else agent.node
            shown = self._output.shown.get((STDOUT, name), b"")
            if _MARK in shown:
                yield f"output: {agent.node} shows a record"
            if not agent.printed.startswith(shown):
                yield f"output: {agent.node} shows {shown[-60:]!r} of {agent.printed[-60:]!r}"
            elif agent.has_delivered and shown != agent.printed:
                yield f"output: {agent.node} shows {len(shown)} of {len(agent.printed)} bytes"
