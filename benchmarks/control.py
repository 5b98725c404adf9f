"""The cost of plaunchctl's socket for a launch, and the response time of plaunchctl.

    python benchmarks/control.py [--repeat N] [--json FILE] [--check]

One round runs an empty job with the plugin and one without it, the other one first in every second
round, so that a busy machine affects both equally. Then it queries a running launch.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from typing import TYPE_CHECKING

import measuring
from measuring import BenchmarkError, Goal, Measurement, command, finish, start, wait_for_ends

if TYPE_CHECKING:
    from collections.abc import Sequence

JOB = ("--no-python", "true")
MOST = 3.0  # milliseconds that the plugin may cost a launch
SOON = 150.0  # milliseconds for an answer
LIMIT = 60.0  # seconds until a launch is found


def run(argv: Sequence[str]) -> tuple[float, float]:
    """Return the wall time and the CPU time of a command, in milliseconds.

    The CPU time includes its children, which are the same in all runs.
    """
    begin = time.perf_counter()
    process = start(argv)
    wait_for_ends([process.pid], argv)
    wall = time.perf_counter() - begin
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    finish(process)
    return wall * 1e3, (usage.ru_utime + usage.ru_stime) * 1e3


def measure_launches(repeat: int) -> dict[str, list[Measurement]]:
    """Measure the wall time and the CPU time of launches with and without the plugin."""
    argvs = {
        "with": command("plaunch", *JOB),
        "without": command("plaunch", "-p", "no:control", *JOB),
    }
    found = {
        kind: [Measurement(f"empty job, {kind} the plugin{what}", "ms") for what in ("", ", CPU")]
        for kind in argvs
    }
    for number in range(-1, repeat):
        for kind in sorted(argvs, reverse=bool(number % 2)):
            values = run(argvs[kind])
            if number >= 0:  # the first round only fills caches
                for measurement, value in zip(found[kind], values, strict=True):
                    measurement.add("plaunch", value)
    return found


def measure_answers(repeat: int) -> list[Measurement]:
    """Measure the wall time of plaunchctl commands."""
    program = os.path.join(os.path.dirname(sys.executable), "plaunchctl")
    found = [Measurement(f"plaunchctl {name}", "ms") for name in ("status", "ps")]
    launch = start(command("plaunch", "--no-python", "sleep", "1000"))
    try:
        deadline = time.monotonic() + LIMIT
        while start([program, "status", str(launch.pid)]).wait(LIMIT):
            if time.monotonic() > deadline or launch.poll() is not None:
                raise BenchmarkError("plaunchctl does not find a launch")
        for _ in range(repeat):
            for measurement in found:
                measurement.add("plaunch", run([program, *measurement.name.split()[1:]])[0])
    finally:
        launch.terminate()
        launch.wait()
    return found


def differences(found: dict[str, list[Measurement]]) -> list[float]:
    """Return the median differences within rounds, as the machine changes between rounds."""
    return [
        statistics.median(
            one - other
            for one, other in zip(
                with_it.samples["plaunch"], without.samples["plaunch"], strict=True
            )
        )
        for with_it, without in zip(found["with"], found["without"], strict=True)
    ]


def main() -> int:
    args = measuring.parser(__doc__.partition("\n")[0], repeat=41).parse_args()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # sockets have short paths
        measuring.ENVIRON["PLAUNCH_RUNTIME_DIR"] = os.path.join(folder, "run")
        launches = measure_launches(args.repeat)
        answers = measure_answers(args.repeat)
    measurements = [*launches["without"], *launches["with"], *answers]
    measuring.print_platform(args.repeat)
    measuring.print_table(measurements)
    wall, cpu = differences(launches)
    goals = [
        Goal(f"the plugin costs a launch at most {MOST:g} ms", wall, MOST),
        Goal(f"and at most {MOST:g} ms of CPU", cpu, MOST),
        Goal(f"plaunchctl status: at most {SOON:g} ms", answers[0].median("plaunch"), SOON),
    ]
    return measuring.report(goals, measurements, args)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchmarkError as error:
        sys.exit(f"control.py: {error}")
