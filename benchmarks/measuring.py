"""The base of the benchmarks: launchers to compare, samples, goals, and the report."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from plaunch_rendezvous_etcd.testing import EtcdServer, EtcdUnavailableError, free_ports

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

LAUNCHERS = {
    "bare": [],
    "plaunch": ["-m", "plaunch"],
    "torchrun": ["-m", "torch.distributed.run"],
}
LIMIT = 120.0  # seconds for one command
Chosen = TypeVar("Chosen")
ETCD = ("etcd", "etcd-v2")  # backends that need a server

# pip compiles installed packages such as torch. An editable plaunch is compiled by
# its first run, unless this variable forbids it: then every launch would compile all of it again.
ENVIRON = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


class BenchmarkError(Exception):
    """A measured command failed."""


@dataclass(frozen=True)
class Goal:
    """A goal for plaunch: `value` is at most `limit`; `text` describes it."""

    text: str
    value: float
    limit: float

    @property
    def met(self) -> bool:
        return self.value <= self.limit


@dataclass
class Measurement:
    """The samples of one quantity by launcher, and its unit (`ms`, `MB`, `s` or `%`)."""

    name: str
    unit: str
    samples: dict[str, list[float]] = field(default_factory=dict)

    def add(self, launcher: str, value: float) -> None:
        self.samples.setdefault(launcher, []).append(value)

    def median(self, launcher: str) -> float:
        return statistics.median(self.samples[launcher])

    def ratio(self, of: str, to: str) -> float:
        return self.median(of) / self.median(to)


LaunchesT = TypeVar("LaunchesT", bound="Launches")


class Pipes:
    """Two named pipes between a benchmark and the workers of its job.

    Workers write lines to the pipe named by the variable `BENCHMARK_SAID`, each with one
    write, which the kernel keeps in one piece. They read a byte from `BENCHMARK_GO` to wait for
    `let_go`.
    """

    def __init__(self) -> None:
        self.env: dict[str, str] = {}
        self._stack = contextlib.ExitStack()
        self._rest = b""
        self._lines: deque[bytes] = deque()

    def __enter__(self) -> Pipes:
        with contextlib.ExitStack() as stack:
            self.folder = stack.enter_context(tempfile.TemporaryDirectory())
            fds = []
            for name in ("SAID", "GO"):
                path = self.env[f"BENCHMARK_{name}"] = os.path.join(self.folder, name)
                os.mkfifo(path)
                fds.append(os.open(path, os.O_RDWR))  # both ends: open does not block
                stack.callback(os.close, fds[-1])
            self._said, self._go = fds
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def hear(self, what: str) -> Iterator[str]:
        """Yield the workers' lines as they arrive; the caller stops when it has enough.

        Raises:
            BenchmarkError: they did not arrive in time; `what` describes them.
        """
        yield from self.hear_until(time.monotonic() + LIMIT)
        raise BenchmarkError(f"not within {LIMIT:.0f} s: {what}")

    def hear_until(self, deadline: float) -> Iterator[str]:
        """Yield the workers' lines until `deadline` on the monotonic clock."""
        poller = select.poll()
        poller.register(self._said, select.POLLIN)
        while True:
            while not self._lines:
                if not poller.poll(max(deadline - time.monotonic(), 0) * 1e3):
                    return
                *lines, self._rest = (self._rest + os.read(self._said, 65536)).split(b"\n")
                self._lines.extend(lines)
            yield self._lines.popleft().decode()

    def let_go(self) -> None:
        """Let one waiting worker continue."""
        os.write(self._go, b"!")


class Launches:
    """Launchers whose workers report their steps; all processes are killed at the end.

    Attributes:
        pipes: to the workers.
        processes: the launchers.
        workers: the process ids of the workers that have reported.
    """

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self.workers: set[int] = set()
        self._stack = contextlib.ExitStack()

    def __enter__(self: LaunchesT) -> LaunchesT:
        with contextlib.ExitStack() as stack:
            self.pipes = stack.enter_context(Pipes())
            stack.callback(self._end)
            self.begin()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def begin(self) -> None:
        """Start the initial launchers."""

    def launch(self, argv: Sequence[str]) -> None:
        """Start another launcher."""
        self.processes.append(start(argv, env=self.pipes.env))

    def _end(self) -> None:
        for pid in (*(process.pid for process in self.processes), *self.workers):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.processes:
            process.wait()


@contextlib.contextmanager
def etcd_server(*arguments: str) -> Iterator[EtcdServer]:
    """Run an etcd server on this machine with more `arguments`."""
    try:
        with EtcdServer(arguments=arguments) as server:
            yield server
    except EtcdUnavailableError as error:
        raise BenchmarkError(str(error)) from error


def free_endpoint() -> str:
    """Return a free loopback port."""
    return f"127.0.0.1:{free_ports('127.0.0.1', 1)[0]}"


def command(launcher: str, *words: str) -> list[str]:
    """Return the command line of a launcher; `bare` is an interpreter that runs a file."""
    return [sys.executable, *LAUNCHERS[launcher], *words]


def start(
    argv: Sequence[str],
    stdout: int = subprocess.DEVNULL,
    stderr: int = subprocess.DEVNULL,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv,
        env={**ENVIRON, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
    )


def finish(process: subprocess.Popen[bytes]) -> bytes:
    """Wait for the end, require success, and return the output of a pipe."""
    try:
        if process.stdout is None and process.stderr is None:
            wait_for_ends([process.pid], process.args)
        out, err = process.communicate(timeout=LIMIT)
    except (BenchmarkError, subprocess.TimeoutExpired):
        process.kill()
        process.wait()
        raise BenchmarkError(f"{process.args!r} did not end within {LIMIT:.0f} s") from None
    if process.returncode != 0:
        raise BenchmarkError(f"{process.args!r} ended with exit code {process.returncode}")
    return out or err or b""


def wait_for_ends(pids: Sequence[int], what: object) -> None:
    """Wait until all `pids` have ended, reaped or not; `what` is for the error message.

    `Popen.wait` with a time-out is too coarse: it polls, finally every 50 ms, and the
    things that are measured here take less.
    """
    deadline = time.monotonic() + LIMIT
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue  # another process's child, already reaped
        try:
            poller = select.poll()
            poller.register(fd, select.POLLIN)
            if not poller.poll(max(deadline - time.monotonic(), 0) * 1e3):
                raise BenchmarkError(f"{what!r}: pid {pid} did not end within {LIMIT:.0f} s")
        finally:
            os.close(fd)


def parser(description: str, repeat: int) -> argparse.ArgumentParser:
    """Return a parser with the common options; `repeat` is the default number."""
    result = argparse.ArgumentParser(description=description)
    result.add_argument(
        "--repeat",
        type=positive,
        default=repeat,
        metavar="N",
        help=f"rounds (default: {repeat})",
    )
    result.add_argument("--json", metavar="FILE", help="also write all samples to FILE")
    result.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    result.add_argument("--no-torchrun", action="store_true", help="do not measure torchrun")
    return result


def add_only(parser: argparse.ArgumentParser) -> None:
    """Add `--only`, for benchmarks with independent rows."""
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="WORD",
        help="only rows whose name has WORD; may be repeated",
    )


def choose(
    parser: argparse.ArgumentParser,
    words: Sequence[str],
    named: Iterable[tuple[Chosen, Sequence[str]]],
) -> list[Chosen]:
    """Return the things that `--only` selects: those with one of `words` in a name.

    Args:
        parser: exits with an error if there are none.
        words: the option's values; without any, everything is selected.
        named: things and their names.
    """
    pairs = list(named)
    lower = [word.lower() for word in words]
    chosen = [
        thing
        for thing, names in pairs
        if not words or any(word in name.lower() for word in lower for name in names)
    ]
    if not chosen:
        there = ", ".join(repr(name) for _, names in pairs for name in names)
        parser.error(f"--only: nothing has one of {list(words)} in its name; there are {there}")
    return chosen


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process, without children; works for zombies too.

    Reads the process's CPU clock, whose id is computed as in `clock_getcpuclockid`: it is
    exact to a nanosecond, where /proc/PID/stat counts in hundredths of a second.
    """
    return time.clock_gettime(~pid << 3 | 2)


def write_script(folder: str, name: str, text: str) -> str:
    """Write the workers' script; return its path."""
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def print_platform(repeat: int) -> None:
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.platform()}")
    print(f"medians of {repeat} rounds\n")


def print_table(measurements: Sequence[Measurement]) -> None:
    """Return a row for each measurement with samples: medians, then ratios."""
    width = max([24, *(len(measurement.name) for measurement in measurements)])
    columns = f"{'bare':>9} {'plaunch':>11} {'torchrun':>11}"
    print(f"{'':{width}} {columns}   plaunch : bare   torchrun : plaunch")
    for measurement in measurements:
        cells = []
        for launcher, size in (("bare", 6), ("plaunch", 8), ("torchrun", 8)):
            text = "-"
            if launcher in measurement.samples:
                text = f"{number(measurement.median(launcher))} {measurement.unit}"
            cells.append(text.rjust(size + 3))
        for of, to, size in (("plaunch", "bare", 16), ("torchrun", "plaunch", 20)):
            known = {of, to} <= measurement.samples.keys() and measurement.median(to) > 0
            cells.append((f"{measurement.ratio(of, to):.1f}" if known else "-").rjust(size))
        print(f"{measurement.name:{width}}", *cells)


def number(value: float) -> str:
    """Format a number with one decimal place, or three if it is small."""
    return f"{value:.1f}" if value >= 1 or value == 0 else f"{value:.3f}"


def print_goals(goals: Sequence[Goal]) -> None:
    print()
    for goal in goals:
        print(f"{'met   ' if goal.met else 'MISSED'} {goal.text} (is {goal.value:.3g})")


def goals_as_json(goals: Sequence[Goal]) -> dict[str, object]:
    """Return for each goal whether plaunch meets it, and its value."""
    return {
        "goals": {goal.text: goal.met for goal in goals},
        "values": {goal.text: goal.value for goal in goals},
    }


def report(
    goals: Sequence[Goal],
    measurements: Sequence[Measurement],
    args: argparse.Namespace,
    **details: object,
) -> int:
    """Print the goals, write the JSON file if requested, and return the exit code."""
    print_goals(goals)
    if args.json:
        content = {
            "python": sys.version,
            "measurements": {
                measurement.name: {"unit": measurement.unit, "samples": measurement.samples}
                for measurement in measurements
            },
            **details,
            **goals_as_json(goals),
        }
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=2)
    return int(args.check and not all(goal.met for goal in goals))
