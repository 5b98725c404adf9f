"""Runs scripts one after the other in this interpreter, and judges each.

Import this module first: it installs the simulated system before anything of plaunch is imported.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from plaunch_testing.simulation.hub import Hub
from plaunch_testing.simulation.modules import SimulatedSystem, install
from plaunch_testing.simulation.shrinking import shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plaunch_testing.simulation.command import CommandReport
    from plaunch_testing.simulation.script import Script, StoreKind
    from plaunch_testing.simulation.world import HistoryLine, SimulatedWorld

__all__ = ["RunReport", "Simulator"]


@dataclass(frozen=True)
class RunReport:
    """One run.

    Args:
        script: what was to happen.
        findings: what was wrong; empty if nothing was.
        history: what has happened, in order.
        exit_codes: of the agents that have ended by themselves, by name.
        faults: the number of faults that had an effect, by kind.
        rounds: the number of rounds in which workers have started.
        seconds: virtual seconds until all was over.
        steps: how often a task has run.
        operations: the number of requests to the store.
    """

    script: Script
    findings: Sequence[str]
    history: Sequence[HistoryLine]
    exit_codes: dict[str, int]
    faults: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    seconds: float = 0.0
    steps: int = 0
    operations: int = 0

    def describe(self) -> str:
        """Describe it on one page: the script, the history, and what was wrong."""
        codes = ", ".join(f"{name} {code}" for name, code in self.exit_codes.items())
        lines = [
            self.script.describe(),
            "",
            *(str(line) for line in self.history),
            "",
            f"exit codes: {codes or 'none'}",
            *(f"FINDING: {finding}" for finding in self.findings),
        ]
        return "\n".join(lines)


class Simulator:
    """Runs scripts; there is one for each interpreter.

    Args:
        logs: whether to keep the agents' log in the history.
    """

    def __init__(self, *, logs: bool = False) -> None:
        self.hub = Hub()
        self.system: SimulatedSystem = install(self.hub)
        self._logs = logs
        if not logs:
            logging.disable(logging.CRITICAL)

    def run_seed(self, seed: int, store: StoreKind | None = None) -> RunReport:
        """Make the script of a seed, and run it."""
        from plaunch_testing.simulation.script import make_script

        return self.run(make_script(random.Random(seed), seed, store))

    def run(self, script: Script) -> RunReport:
        """Run a script, and judge it."""
        from plaunch_testing.simulation.checks import find_faults
        from plaunch_testing.simulation.recording import record_run
        from plaunch_testing.simulation.world import SimulatedWorld

        world = SimulatedWorld(self.system, script)
        handler = _HistoryHandler(world)
        logger = logging.getLogger("plaunch")
        if self._logs:
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
            logger.propagate = False
        try:
            world.run()
            return RunReport(
                script,
                find_faults(record_run(world)),
                world.history,
                {node.name: node.exit_code for node in world.nodes if node.exit_code is not None},
                Counter(one.fault.kind.value for one in world.happened if one.had_effect),
                len(world.training.rounds),
                world.hub.now,
                world.hub.steps,
                world.server.operations,
            )
        finally:
            logger.removeHandler(handler)
            logging.disable(logging.CRITICAL)  # what is unwound here is not part of the run
            world.end()
            logging.disable(logging.NOTSET if self._logs else logging.CRITICAL)

    def run_command(self, seed: int) -> CommandReport:
        """Run a command that drives agents through simulated connections, and judge it."""
        from plaunch_testing.simulation.command import SimulatedCommand

        try:
            return SimulatedCommand(self.system, seed).run()
        finally:
            self.hub.end()

    def shorten(self, script: Script, *, attempts: int = 300) -> Script:
        """Return a smaller script with which the same check fails, or the same script."""
        return shorten(script, lambda candidate: self.run(candidate).findings, attempts)


class _HistoryHandler(logging.Handler):
    """Adds the agents' log to the history."""

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        process = self._world.system.process
        where = "world" if process is None else f"{process.host.name}.{process.pid}"
        self._world.note(where, f"  [{record.levelname.lower()}] {record.getMessage()}")
