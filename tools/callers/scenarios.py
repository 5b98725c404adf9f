"""What is run with a library, how it is run, and what is expected of it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SCRIPTS = Path(__file__).parent / "scripts"
PORT = "{port}"  # in a word of a command: a free port, the same in all commands
PLAUNCH, TORCHRUN, OTHER = "plaunch", "torchrun", "another launcher"
WORKS, DIFFERS, FAILS = "works", "differs", "fails"
_MARK = "PLAUNCH_CALLERS_RUN"  # a variable of all processes of a scenario
_GRACE = 20.0  # seconds between SIGTERM and SIGKILL at the limit
_OF_THIS_SHELL = ("PET_", "PLAUNCH_", "PYTHON", "TORCHELASTIC_", "ACCELERATE_", "DS_", "HF_")
_LINE = re.compile(r"(?:^|\] ?|:)(\d+ of \d+, node \d+: [\d.]+, [a-z ]+)$", re.MULTILINE)


@dataclass(frozen=True)
class Scenario:
    """One row of the table.

    Args:
        text: what is run, for the table.
        commands: one for each machine. The first word is a program of the environment, a script
            that starts its workers itself, or `plaunch`.
        expected: the lines of the workers, as from `steps`, in any order.
        code: the exit code of each command.
        says: patterns, and how many lines of the output have each.
        environ: variables of the commands.
        only_plaunch: torchrun has nothing like it, so that there is no comparison.
    """

    text: str
    commands: tuple[tuple[str, ...], ...]
    expected: tuple[str, ...] = ()
    code: int = 0
    says: Mapping[str, int] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    only_plaunch: bool = False

    def find_problem(self, outcome: Outcome, launcher: str = PLAUNCH) -> str:
        """Return what is not as expected; empty if all is.

        Args:
            outcome: what the commands did.
            launcher: expected in place of plaunch. The messages of another are not compared.
        """
        if outcome.ended_at_limit:
            return f"did not end within {outcome.limit:g} s"
        codes = set(outcome.codes)
        as_torchrun = launcher == TORCHRUN and self.code != 0
        if codes != {self.code} and (not as_torchrun or 0 in codes):
            return f"exit code {' and '.join(map(str, sorted(codes)))} instead of {self.code}"
        expected = sorted(line.replace(PLAUNCH, launcher) for line in self.expected)
        found = sorted(_LINE.findall(outcome.text))
        if found != expected:
            return f"workers said {found or 'nothing'} instead of {expected or 'nothing'}"
        for pattern, count in self.says.items() if launcher == PLAUNCH else ():
            if (times := len(re.findall(pattern, outcome.text, re.MULTILINE))) != count:
                return f"said {pattern!r} {times} times instead of {count}"
        return ""

    def describe(self) -> str:
        """Return what is expected, as a sentence."""
        if not self.expected:
            return f"ends with exit code {self.code}"
        nodes = len({line.partition(":")[0].partition("node ")[2] for line in self.expected})
        ranks = f"{len(self.expected)} rank{'s'[: len(self.expected) - 1]}"
        return ranks if nodes == 1 else f"{ranks} on {nodes} nodes"


def steps(ranks: int = 2, per_node: int = 0, launcher: str = PLAUNCH) -> tuple[str, ...]:
    """Return what the workers of a training say: `scripts/training_step.py` has the line.

    Args:
        ranks: of all nodes.
        per_node: workers of a node; 0 if there is only one node.
        launcher: what has started them.
    """
    total = ranks * (ranks + 1) // 2
    per_node = per_node or ranks
    return tuple(
        f"{rank} of {ranks}, node {rank // per_node}: {total}, {launcher}" for rank in range(ranks)
    )


@dataclass(frozen=True)
class Outcome:
    """What the commands of a scenario did.

    Args:
        codes: their exit codes.
        text: their output.
        limit: seconds that they had.
        ended_at_limit: they did not end by themselves.
    """

    codes: tuple[int, ...]
    text: str
    limit: float = 0.0
    ended_at_limit: bool = False


@dataclass(frozen=True)
class Verdict:
    """The last columns of a row: one of `WORKS`, `DIFFERS` and `FAILS`, and a sentence."""

    word: str
    sentence: str


def judge(scenario: Scenario, python: Path, folder: Path, limit: float) -> Verdict:
    """Run a scenario, and the same with torchrun if something is not as expected.

    Args:
        scenario: what to run.
        python: the interpreter of an environment with the library and plaunch.
        folder: for the scripts and the outputs of the commands; it must not exist.
        limit: seconds for each of the two.
    """
    problem = scenario.find_problem(run(scenario, python, folder / PLAUNCH, limit))
    if not problem:
        return Verdict(WORKS, scenario.describe())
    if scenario.only_plaunch:
        return Verdict(FAILS, problem)
    with_torchrun = run(scenario, python, folder / TORCHRUN, limit, TORCHRUN)
    if not (other := scenario.find_problem(with_torchrun, TORCHRUN)):
        return Verdict(DIFFERS, f"{problem}; works with torchrun")
    return Verdict(FAILS, f"{problem}; with torchrun: {other}")


def run(
    scenario: Scenario, python: Path, folder: Path, limit: float, launcher: str = PLAUNCH
) -> Outcome:
    """Run the commands of a scenario at the same time, with plaunch or with torchrun."""
    shutil.copytree(SCRIPTS, folder)
    home = folder / "home"
    home.mkdir()
    mark = uuid.uuid4().hex
    environ = {
        **{
            name: value for name, value in os.environ.items() if not name.startswith(_OF_THIS_SHELL)
        },
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        "HOME": str(home),
        "LOGLEVEL": "WARNING",
        "OMP_NUM_THREADS": "1",
        "TORCH_EXTENSIONS_DIR": str(python.parents[1] / "torch_extensions"),
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        **scenario.environ,
        _MARK: mark,
    }
    deadline = time.monotonic() + limit
    port = _free_port()
    outputs = [folder / f"output-{number}" for number in range(len(scenario.commands))]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for words, output in zip(scenario.commands, outputs, strict=True):
            if processes:
                _wait_for_server(port, processes, deadline)
            command = _command_line(words, python, launcher)
            with output.open("wb") as file:
                processes.append(
                    subprocess.Popen(
                        [word.replace(PORT, str(port)) for word in command],
                        cwd=folder, env=environ, stdin=subprocess.DEVNULL,
                        stdout=file, stderr=subprocess.STDOUT,
                    )
                )  # fmt: skip
        ended_at_limit = not _wait(processes, deadline)
    finally:
        _end(processes, mark)
    return Outcome(
        tuple(process.returncode for process in processes),
        "".join(output.read_text(errors="replace") for output in outputs),
        limit,
        ended_at_limit,
    )


def _command_line(words: Sequence[str], python: Path, launcher: str) -> list[str]:
    """Return the command for plaunch in the place of torchrun, or for torchrun itself."""
    program, *others = words
    if program == PLAUNCH:
        module = PLAUNCH if launcher == PLAUNCH else "torch.distributed.run"
        return [str(python), "-m", module, *others]
    if launcher == PLAUNCH:
        return [str(python), "-m", "plaunch_torchrun", *words]
    start = [str(python)] if program.endswith(".py") else []
    return [*start, program if start else str(python.parent / program), *others]


def _wait(processes: Iterable[subprocess.Popen[bytes]], deadline: float) -> bool:
    """Return whether all have ended by the deadline."""
    try:
        for process in processes:
            process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def _wait_for_server(
    port: int, processes: Sequence[subprocess.Popen[bytes]], deadline: float
) -> None:
    """Wait until machine 0 listens: accelerate refuses a port there that is in use already."""
    while not _is_taken(port) and time.monotonic() < deadline:
        if processes[0].poll() is not None:
            return
        time.sleep(0.05)


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _end(processes: Sequence[subprocess.Popen[bytes]], mark: str) -> None:
    """End what still runs: with SIGTERM first, so that launchers end their workers."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.terminate()
    _wait(running, time.monotonic() + _GRACE)
    for process in running:
        process.kill()
        process.wait()
    wanted = f"{_MARK}={mark}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted in path.read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)
