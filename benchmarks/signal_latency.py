"""The latency of a signal from the launcher to its workers on a busy machine.

    python benchmarks/signal_latency.py [--repeat=20] [--workers=N ...] [--busy=100] [--only=WORD]
        [--as-user]

Each launcher's workers sleep until SIGTERM comes. The time is from SIGTERM to the launcher to the
signal handler of a worker, and the last worker of a launch counts. Workers take the highest
priority, if permitted, so that their own wait for a processor does not count; a worker on its own
shows the remaining delay. The machine is busy from a second before the signal.

With `--as-user`, launchers and workers may not raise their priority, as those of other users than
root: `setpriv`, which needs root, removes that capability.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import sys
import time
from typing import TYPE_CHECKING

from busy import BusyProcesses, first_in_line
from measuring import LIMIT, BenchmarkError, Launches, command, positive, write_script

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

GOAL = 0.2  # seconds
AS_USER = ("setpriv", "--bounding-set=-sys_nice", "--inh-caps=-sys_nice")
SETTLED = 1.0  # seconds that the machine is busy before the signal
BATCH = 5  # launchers that are ready at the same time
_ROW = "{:12} {:>7} {:>12} {:>12} {:>12}"
WORKER = """\
import contextlib, os, signal, time
with contextlib.suppress(PermissionError):
    os.setpriority(os.PRIO_PROCESS, 0, -20)
said = os.open(os.environ["BENCHMARK_SAID"], os.O_WRONLY)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.write(said, f"ready {os.getpid()}\\n".encode())
signal.sigwait([signal.SIGTERM])
os.write(said, f"{time.monotonic()} {os.getpid()}\\n".encode())
os._exit(0)
"""


def measure(
    launcher: str, workers: int, count: int, busy: BusyProcesses, prefix: Sequence[str]
) -> list[float]:
    """Return the seconds from the signal to the last worker, for `count` concurrent launches."""
    with Launches() as launches:
        script = write_script(launches.pipes.folder, "worker.py", WORKER)
        words = () if launcher == "bare" else (f"--nproc-per-node={workers}",)
        samples = []
        for _ in range(count):
            launches.launch([*prefix, *command(launcher, *words, script)])
            for _ in range(workers):
                _hear(launches)
        busy.resume()
        try:
            with first_in_line():
                time.sleep(SETTLED)
                for process in launches.processes:
                    samples.append(_signal(launches, process, workers))
        finally:
            busy.pause()
        for process in launches.processes:
            process.wait(LIMIT)
        return samples


def _hear(launches: Launches) -> str:
    """Return the first word of a worker's next line, which ends with its process id."""
    line = next(launches.pipes.hear("a worker's line"))
    first, _, pid = line.partition(" ")
    launches.workers.add(int(pid))
    return first


def _signal(launches: Launches, process: subprocess.Popen[bytes], workers: int) -> float:
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    return max(float(_hear(launches)) for _ in range(workers)) - began


def main() -> int:
    """Print a row for each kind of launch; return 1 if plaunch misses the goal."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeat", type=positive, default=20, help="launches (default: 20)")
    parser.add_argument("--workers", type=positive, action="append", help="default: 2 and 8")
    parser.add_argument("--busy", type=positive, default=100, help="processes (default: 100)")
    parser.add_argument("--only", default="", help="only launchers whose name has this word")
    parser.add_argument(
        "--as-user", action="store_true", help="without the right to raise priority"
    )
    args = parser.parse_args()
    prefix = AS_USER if args.as_user else ()
    rows = [("bare", 1)]
    rows += [(name, n) for n in args.workers or (2, 8) for name in ("plaunch", "torchrun")]
    is_met = True
    print(f"{args.repeat} launches, {args.busy} busy processes, {os.cpu_count()} cores\n")
    print(_ROW.format("launcher", "workers", "median", "max", "over 0.2 s"))
    with BusyProcesses(args.busy) as busy:
        for launcher, workers in rows:
            if args.only.lower() not in launcher:
                continue
            samples: list[float] = []
            while len(samples) < args.repeat:
                size = min(BATCH, args.repeat - len(samples))
                samples += measure(launcher, workers, size, busy, prefix)
            late = sum(sample > GOAL for sample in samples)
            cells = (f"{statistics.median(samples) * 1e3:.1f} ms", f"{max(samples) * 1e3:.1f} ms")
            print(_ROW.format(launcher, workers, *cells, late), flush=True)
            is_met = is_met and not (launcher == "plaunch" and late)
    return 0 if is_met else 1


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        try:
            sys.exit(main())
        except BenchmarkError as error:
            sys.exit(f"signal_latency.py: {error}")
