"""Whether launchers handle signals in the order of arrival, and workers keep their grace period.

    python benchmarks/signal_order.py [--count=720] [--seed=1] [--busy=100] [--only=WORD]

Each sequence of two or three stop signals goes to a launcher of one worker, which saves for a
moment when it gets a signal. A third of the launchers has the machine to itself, a third shares it
with busy processes, and a third is suspended (SIGSTOP) until all signals are sent.

The exit code shows which signal the launcher handled first. The kernel keeps no order of
signals that are pending together: the first one counts as known if the launcher had read it well
before the next one was sent. Otherwise each of the signals pending with it is accepted; for a
suspended launcher only the one with the highest number. All signals of a sequence are one
request, so each worker must save. The exit code is 1 if a check fails.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from busy import BusyProcesses, first_in_line
from measuring import LIMIT, BenchmarkError, command, positive, start, write_script

if TYPE_CHECKING:
    import subprocess

MODES = ("alone", "busy", "suspended")
STOPS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
GAPS = (0.0, 0.001, 0.005, 0.02)  # seconds between two signals
SAME_REQUEST = 0.2  # seconds within which any signal belongs to the request of the first one
BATCH = 8  # launchers that are ready at the same time
_ROW = "{:10} {:>9} {:>11} {:>11} {:>13} {:>8}"
WORKER = """\
import os, signal, sys, time
def save(*_):
    time.sleep(0.3)
    open("saved", "w").close()
    os._exit(0)
os.chdir(sys.argv[1])
for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"):
    signal.signal(getattr(signal, name), save)
open("ready", "w").close()
while True:
    time.sleep(60)
"""


@dataclass(frozen=True)
class Sequence:
    """Signals to one launcher, and the seconds between them."""

    mode: str
    signals: tuple[signal.Signals, ...]
    gaps: tuple[float, ...]

    @classmethod
    def at_random(cls, mode: str, source: random.Random) -> Sequence:
        signals = tuple(source.choices(STOPS, k=source.choice((2, 3))))
        return cls(mode, signals, tuple(source.choices(GAPS, k=len(signals) - 1)))


@dataclass
class Tally:
    """The results of the sequences of one mode."""

    count: int = 0
    known: int = 0  # whose first signal is known
    late: int = 0  # that took this program too long to be one request
    wrong: int = 0  # exit codes
    unsaved: int = 0  # workers without their grace period, but for those of late sequences


class Launch:
    """A launcher with one worker, and a sequence for it."""

    def __init__(self, folder: str, sequence: Sequence) -> None:
        self.sequence = sequence
        self.firsts = {sequence.signals[0]}  # those that may have arrived first
        self.is_known = True  # whether there is only one
        self.seconds = 0.0  # from the first signal to the last
        self._folder = folder
        script = write_script(folder, "worker.py", WORKER)
        self.process: subprocess.Popen[bytes] = start(
            command("plaunch", "--shutdown-timeout=60", script, folder)
        )

    def await_worker(self) -> None:
        deadline = time.monotonic() + LIMIT
        while not self._has("ready"):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise BenchmarkError(f"the launcher {self.process.pid} has no worker")
            time.sleep(0.01)

    def send(self) -> None:
        """Send the sequence."""
        pid = self.process.pid
        is_suspended = self.sequence.mode == "suspended"
        if is_suspended:
            os.kill(pid, signal.SIGSTOP)
            while _status(pid, "State") != "T":
                time.sleep(0.001)
        first, *others = self.sequence.signals
        began = time.monotonic()
        os.kill(pid, first)
        is_pending = True
        for signum, gap in zip(others, self.sequence.gaps, strict=True):
            time.sleep(gap / 2)
            is_pending &= not gap or bool(int(_status(pid, "ShdPnd"), 16) >> (first - 1) & 1)
            if is_pending:
                self.firsts.add(signum)
            time.sleep(gap / 2)
            os.kill(pid, signum)
        self.seconds = time.monotonic() - began
        self.is_known = len(self.firsts) == 1
        if is_suspended:
            os.kill(pid, signal.SIGCONT)
            self.firsts = {max(self.firsts)}

    def end(self, tally: Tally) -> str:
        """Wait for the end and count it; return the error, or an empty text."""
        code = self.process.wait(LIMIT)
        is_late = self.seconds > SAME_REQUEST
        is_wrong = code - 128 not in self.firsts
        is_unsaved = not is_late and not self._has("saved")
        tally.count += 1
        tally.known += self.is_known
        tally.late += is_late
        tally.wrong += is_wrong
        tally.unsaved += is_unsaved
        if not (is_wrong or is_unsaved):
            return ""
        gaps = (0.0, *self.sequence.gaps)
        names = ", ".join(
            f"{signum.name} after {gap * 1e3:g} ms" if gap else signum.name
            for signum, gap in zip(self.sequence.signals, gaps, strict=True)
        )
        firsts = " or ".join(sorted(str(128 + signum) for signum in self.firsts))
        saved = "not saved" if is_unsaved else "saved"
        return f"{self.sequence.mode}: {names}: exit code {code} instead of {firsts}, {saved}"

    def _has(self, name: str) -> bool:
        return os.path.exists(os.path.join(self._folder, name))


def _status(pid: int, name: str) -> str:
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(line.split()[1] for line in status if line.startswith(f"{name}:"))


def play(batch: list[Sequence], busy: BusyProcesses, tallies: dict[str, Tally]) -> list[str]:
    """Send one batch of sequences of the same mode; return the errors."""
    with contextlib.ExitStack() as stack:
        launches = []
        for sequence in batch:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            launch = Launch(folder, sequence)
            stack.callback(launch.process.wait, LIMIT)
            stack.callback(launch.process.kill)
            launches.append(launch)
        for launch in launches:
            launch.await_worker()
        if batch[0].mode == "busy":
            busy.resume()
        try:
            with first_in_line():
                for launch in launches:
                    launch.send()
            return [text for each in launches if (text := each.end(tallies[each.sequence.mode]))]
        finally:
            busy.pause()


def main() -> int:
    """Send all sequences and print a row for each mode."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=positive, default=720, help="sequences (default: 720)")
    parser.add_argument("--seed", type=int, default=1, help="random seed (default: 1)")
    parser.add_argument("--busy", type=positive, default=100, help="processes (default: 100)")
    parser.add_argument("--only", default="", help="only modes whose name has this word")
    args = parser.parse_args()
    modes = [mode for mode in MODES if args.only.lower() in mode]
    if not modes:
        parser.error(f"--only={args.only!r}: choose from {', '.join(MODES)}")
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # launchers inherit that nohup ignores it
    source = random.Random(args.seed)
    tallies = {mode: Tally() for mode in modes}
    count = -(-args.count // len(modes))
    wrong = 0
    with BusyProcesses(args.busy) as busy:
        for done in range(0, count, BATCH):
            for mode in modes:
                size = min(BATCH, count - done)
                batch = [Sequence.at_random(mode, source) for _ in range(size)]
                for text in play(batch, busy, tallies):
                    wrong += 1
                    print(text, flush=True)
    print(
        _ROW.format("launchers", "sequences", "known order", "sent late", "wrong order", "unsaved")
    )
    for mode, tally in tallies.items():
        cells = (tally.count, tally.known, tally.late, tally.wrong, tally.unsaved)
        print(_ROW.format(mode, *cells))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
