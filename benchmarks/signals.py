"""The effect of signals from schedulers, supervisors and users on a job: plaunch and torchrun.

    python benchmarks/signals.py [--launcher NAME ...] [--only WORD]

Each row sends one sequence to a launcher of four workers. A worker handles SIGTERM, SIGINT and
SIGHUP by saving for a second, then exits with 0. The row shows how many saved, with which code
the launcher exited, how long after the last signal, whether it named the first failed rank, and how
many workers outlived it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from measuring import LAUNCHERS, BenchmarkError, command, start, write_script

_ROW = "{:48} {:9} {:7} {:>5} {:>7} {:>6} {:>4}"
BOUND = 60.0  # seconds for a launcher to end
WORKER = """\
import os, pathlib, signal, sys, time
folder, rank = pathlib.Path(sys.argv[1]), os.environ["RANK"]
def save(*_):
    (folder / f"asked-{rank}").touch()
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        time.sleep(0.05)
    (folder / f"saved-{rank}").touch()
    sys.exit(0)
how = sys.argv[2]
for name in ("SIGTERM", "SIGINT", "SIGHUP"):
    signal.signal(getattr(signal, name), signal.SIG_IGN if how == "fail" else save)
(folder / f"pid-{rank}").write_text(str(os.getpid()))
while len(list(folder.glob("pid-*"))) < 4:
    time.sleep(0.01)
if how == "fail" and rank == "0":
    sys.exit(7)
while True:
    time.sleep(60)
"""


@dataclass(frozen=True)
class Sequence:
    """Signals, each with the seconds to wait before it; `options` are the launcher's."""

    name: str
    signals: tuple[tuple[float, signal.Signals], ...]
    how: str = "save"
    options: tuple[str, ...] = ()
    plaunch_only: bool = False


TERM, INT, HUP = signal.SIGTERM, signal.SIGINT, signal.SIGHUP
SEQUENCES = (
    Sequence("Kubernetes: SIGTERM", ((0, TERM),)),
    Sequence(
        "Slurm's time limit: SIGTERM, SIGCONT, SIGTERM",
        ((0, TERM), (0.005, signal.SIGCONT), (0.005, TERM)),
    ),
    Sequence("systemd: SIGTERM, SIGCONT, SIGHUP", ((0, TERM), (0, signal.SIGCONT), (0, HUP))),
    Sequence("Ctrl-C", ((0, INT),)),
    Sequence("Ctrl-C twice", ((0, INT), (0.5, INT))),
    Sequence("kill twice, 3 s apart, as a failure stops all", ((0, TERM), (3, TERM)), how="fail"),
    Sequence(
        "Ctrl-C three times, as a failure stops all",
        ((0, INT), (0.5, INT), (0.5, INT)),
        how="fail",
        options=("--shutdown-timeout=12",),
    ),
    Sequence(
        "SIGTERM, then a notice (SIGUSR1)",
        ((0, TERM), (0.3, signal.SIGUSR1)),
        options=("--signal-policy=notify",),
        plaunch_only=True,
    ),
    Sequence("SIGUSR1 without a handler", ((0, signal.SIGUSR1),)),
)


def play(launcher: str, sequence: Sequence) -> list[str]:
    """Run one sequence; return the cells of its row."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        script = write_script(folder, "worker.py", WORKER)
        options = [option for option in sequence.options if launcher == "plaunch"]
        argv = command(launcher, "--nproc-per-node=4", *options, script, name, sequence.how)
        said = stack.enter_context(open(folder / "stderr", "w+b"))
        process = start(argv, stderr=said.fileno())
        stack.callback(_end_all, process, folder)
        _await_files(folder, "pid-*", 4)
        if sequence.how == "fail":
            time.sleep(1.0)  # torchrun polls every 0.1 s
        for pause, signum in sequence.signals:
            time.sleep(pause)
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signum)
        sent = time.monotonic()
        try:
            process.wait(timeout=BOUND)
        except subprocess.TimeoutExpired:
            return ["-", "never", "-", "-", "-"]
        took = time.monotonic() - sent
        saved = len(list(folder.glob("saved-*")))
        said.seek(0)
        text = said.read().decode(errors="replace")
        named = bool(re.search(r"rank\D{0,8}0.{0,80}(exit ?code)\D{0,4}7", text, re.I | re.S))
        left = sum(_is_alive(int(path.read_text())) for path in folder.glob("pid-*"))
        report = ("yes" if named else "no") if sequence.how == "fail" else ""
        return [f"{saved} of 4", str(process.returncode), f"{took:.1f} s", report, str(left)]


def _await_files(folder: Path, pattern: str, count: int) -> None:
    deadline = time.monotonic() + BOUND
    while len(list(folder.glob(pattern))) < count:
        if time.monotonic() > deadline:
            raise BenchmarkError(f"{pattern}: fewer than {count} after {BOUND:g} s")
        time.sleep(0.02)


def _is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def _end_all(process: subprocess.Popen[bytes], folder: Path) -> None:
    pids = [int(path.read_text() or 0) for path in folder.glob("pid-*")]
    for pid in (process.pid, *pids):
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    process.wait()


def main() -> None:
    """Run the sequences and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    known = sorted(set(LAUNCHERS) - {"bare"})
    parser.add_argument("--launcher", action="append", choices=known)
    parser.add_argument("--only", default="", help="only rows whose name has this word")
    args = parser.parse_args()
    print(_ROW.format("signals", "launcher", "saved", "code", "after", "cause", "left"))
    for sequence in SEQUENCES:
        if args.only.lower() not in sequence.name.lower():
            continue
        for launcher in args.launcher or known:
            if sequence.plaunch_only and launcher != "plaunch":
                continue
            print(_ROW.format(sequence.name, launcher, *play(launcher, sequence)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
