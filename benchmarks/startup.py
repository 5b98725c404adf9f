"""The cost of a launch without its workers: plaunch, torchrun and the bare interpreter in turn.

    python benchmarks/startup.py [--etcd] [--repeat N] [--json FILE] [--check]

Every measurement is taken of all launchers in one round before the next round begins, so that a
busy machine affects all equally; it prints medians of N rounds. All of them run under the
interpreter that runs this script. benchmarks/README.md says how to read the table.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

import measuring
from measuring import LIMIT, BenchmarkError, Goal, Measurement, command, finish, start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

HEAVY = ("torch", "numpy", "etcd3", "grpc", "sklearn")
HEAVY_OF_ETCD = ("torch", "numpy", "sklearn")  # must not be imported by a job over etcd
WORKERS = "--nproc-per-node=2"


def wall(argv: Sequence[str]) -> float:
    """Return the wall time of a command in milliseconds."""
    begin = time.perf_counter()
    finish(start(argv))
    return (time.perf_counter() - begin) * 1e3


def peak_memory(argv: Sequence[str]) -> float:
    """Return the peak memory of a command's process in MB, without its children.

    It is the kernel's high-water mark (VmHWM), polled while the process lives.
    The resource usage of `wait4` is not suitable: it includes the largest child, and what
    this very process had in memory when it started the command.
    """
    process = start(argv)
    peak = 0
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), open(f"/proc/{process.pid}/status") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    peak = max(peak, int(line.split()[1]))
        time.sleep(0.001)
    finish(process)
    return peak / 1e3


def import_time(module: str) -> float:
    """Return the milliseconds of `import module` in a fresh interpreter, without its start."""
    code = (
        f"import time; begin = time.perf_counter(); import {module}; "
        "print((time.perf_counter() - begin) * 1e3)"
    )
    process = start([sys.executable, "-c", code], stdout=subprocess.PIPE)
    return float(finish(process))


def imported_modules(argv: Sequence[str]) -> dict[str, float]:
    """Return the modules that a command's process imports, with their own milliseconds.

    `-X importtime` makes the interpreter list them; workers do not inherit the option.
    """
    process = start([argv[0], "-X", "importtime", *argv[1:]], stderr=subprocess.PIPE)
    modules = {}
    for line in finish(process).decode(errors="replace").splitlines():
        own, bar, rest = line.removeprefix("import time:").partition("|")
        if bar and own.strip().isdecimal():
            modules[rest.rpartition("|")[2].strip()] = int(own) / 1e3
    return modules


def over_etcd(endpoint: str, script: str) -> list[str]:
    """Return the command line of an empty job of one node, with a new run id."""
    options = ("--rdzv-backend=etcd-v2", f"--rdzv-endpoint={endpoint}")
    run_id = f"--rdzv-id=startup-{os.urandom(6).hex()}"
    return command("plaunch", WORKERS, *options, run_id, script)


def rounds(
    script: str, launchers: Sequence[str], endpoint: str
) -> list[tuple[Measurement, Callable[[], None]]]:
    """Return each measurement, and a function that samples it for every launcher.

    Args:
        endpoint: of an etcd server; empty to skip measurements over etcd.
    """
    empty = {name: command(name, WORKERS, script) for name in launchers}
    empty["bare"] = command("bare", script)
    usage = {name: command(name, "--help") for name in launchers}
    usage["bare"] = command("bare", script)
    plan = {"bare": command("bare", script)}
    plan["plaunch"] = command("plaunch", WORKERS, "--dry-run", script)
    imports = {"plaunch": "plaunch", "torchrun": "torch.distributed.run"}

    def of(
        name: str, unit: str, sample: Callable[[str], float], names: Sequence[str]
    ) -> tuple[Measurement, Callable[[], None]]:
        measurement = Measurement(name, unit)

        def take() -> None:
            for launcher in names:
                measurement.add(launcher, sample(launcher))

        return measurement, take

    everyone = ["bare", *launchers]
    result = [
        of("empty job, 2 workers", "ms", lambda name: wall(empty[name]), everyone),
        of("--help", "ms", lambda name: wall(usage[name]), everyone),
        of("import", "ms", lambda name: import_time(imports[name]), launchers),
        of("peak memory, empty job", "MB", lambda name: peak_memory(empty[name]), everyone),
        of("peak memory, --help", "MB", lambda name: peak_memory(usage[name]), everyone),
        of("--dry-run", "ms", lambda name: wall(plan[name]), ["bare", "plaunch"]),
    ]
    if endpoint:
        result += [
            of(name, unit, lambda _, take=take: take(over_etcd(endpoint, script)), ["plaunch"])
            for name, unit, take in (
                ("empty job, etcd", "ms", wall),
                ("peak memory, etcd", "MB", peak_memory),
            )
        ]
    return result


def goals(
    measurements: Sequence[Measurement], heavy: Sequence[str], heavy_of_etcd: Sequence[str]
) -> Iterator[Goal]:
    job, usage, load, memory, _, plan, *etcd = measurements
    if "torchrun" in job.samples:
        yield Goal("empty job: at most 1/12 of torchrun", job.ratio("plaunch", "torchrun"), 1 / 12)
    yield Goal("empty job: memory at most 40 MB", memory.median("plaunch"), 40)
    yield Goal("--help: at most 6 bare interpreters", usage.ratio("plaunch", "bare"), 6)
    yield Goal("--dry-run: at most 10 bare interpreters", plan.ratio("plaunch", "bare"), 10)
    yield Goal("import plaunch: at most 10 ms", load.median("plaunch"), 10)
    yield Goal("empty job: heavy packages imported", len(heavy), 0)
    if etcd:
        yield Goal("empty job, etcd: memory at most 60 MB", etcd[1].median("plaunch"), 60)
        yield Goal("empty job, etcd: other heavy packages than its own", len(heavy_of_etcd), 0)


def print_imports(modules: dict[str, float], count: int) -> None:
    print(f"\nthe launcher of an empty job imports {len(modules)} modules; the dearest, in ms:")
    for name in sorted(modules, key=lambda name: -modules[name])[:count]:
        print(f"  {modules[name]:6.1f}  {name}")


def main() -> int:
    parser = measuring.parser(__doc__.partition("\n")[0], repeat=9)
    parser.add_argument(
        "--imports", type=int, default=0, metavar="N", help="show the N slowest imports of plaunch"
    )
    parser.add_argument(
        "--etcd", action="store_true", help="also start an etcd server, and measure a job over it"
    )
    args = parser.parse_args()
    launchers = ["plaunch"] if args.no_torchrun else ["plaunch", "torchrun"]
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        endpoint = stack.enter_context(measuring.etcd_server()).endpoint if args.etcd else ""
        script = measuring.write_script(folder, "none.py", "")  # the launcher is measured
        taken = rounds(script, launchers, endpoint)
        for number in range(-1, args.repeat):
            for measurement, take in taken:
                take()
                if number < 0:
                    measurement.samples.clear()  # the first round only warms caches
        modules = imported_modules(command("plaunch", WORKERS, script))
        of_etcd = imported_modules(over_etcd(endpoint, script)) if endpoint else {}
    measurements = [measurement for measurement, _ in taken]
    heavy = sorted(name for name in HEAVY if name in modules)
    heavy_of_etcd = sorted(name for name in HEAVY_OF_ETCD if name in of_etcd)

    measuring.print_platform(args.repeat)
    measuring.print_table(measurements)
    if args.imports:
        print_imports(modules, args.imports)
    reached = list(goals(measurements, heavy, heavy_of_etcd))
    return measuring.report(
        reached,
        measurements,
        args,
        heavy_imports=heavy,
        heavy_imports_etcd=sorted(name for name in HEAVY if name in of_etcd),
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchmarkError as error:
        sys.exit(f"startup.py: {error}")
