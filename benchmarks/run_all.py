"""Runs all benchmarks one after the other, and writes a page with the results.

    python benchmarks/run_all.py [--quick] [--only WORD] [--output FILE] [--json FILE] [--check]

Each benchmark is a process of its own, so one that fails does not stop the others: the page says
why it has no results. The page is docs/benchmarks.md; that of a partial run is
printed, unless --output says where to write it. Nothing else should run on the machine.
benchmarks/README.md says what the benchmarks measure.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import machine
import measuring
import results_page
from plaunch_rendezvous_etcd.testing import EtcdUnavailableError, find_etcd

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FOLDER = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(FOLDER)
PAGE = os.path.join(ROOT, "docs", "benchmarks.md")
LIMIT = 900.0  # seconds for one benchmark
END_LIMIT = 30.0  # seconds for one to clean up after itself when it is interrupted


@dataclass(frozen=True)
class Benchmark:
    """One benchmark and its arguments.

    Args:
        title: its heading on the page.
        about: a sentence below the heading.
        script: the program, in the folder of the benchmarks; takes `--json=FILE`.
        arguments: for a full run.
        quick: arguments for a quick run instead.
        needs: its requirements: `torch`, `etcd`, `otel`, `sshd`.
        if_there: more arguments if a requirement is installed, by requirement.
        if_missing: more arguments if a requirement is missing, by requirement.
    """

    title: str
    about: str
    script: str
    arguments: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    if_there: Mapping[str, str] = field(default_factory=dict)
    if_missing: Mapping[str, str] = field(default_factory=dict)

    def argv(self, missing: Mapping[str, str], *, is_quick: bool) -> list[str]:
        """Return its arguments on this machine; `missing` are the missing requirements."""
        return [
            *(self.quick if is_quick else self.arguments),
            *(argument for need, argument in self.if_there.items() if need not in missing),
            *(argument for need, argument in self.if_missing.items() if need in missing),
        ]


@dataclass
class Outcome:
    """The result of a benchmark: its JSON object, or the problem."""

    title: str
    about: str
    command: str
    notes: list[str] = field(default_factory=list)  # omissions, and their reasons
    seconds: float = 0.0
    problem: str = ""
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def missed(self) -> list[str]:
        return [text for text, met in self.result.get("goals", {}).items() if not met]

    def __str__(self) -> str:
        if self.problem:
            return f"not measured: {self.problem}"
        goals = self.result.get("goals", {})
        met = len(goals) - len(self.missed)
        return f"{self.seconds:.0f} s, {met} of {len(goals)} goals met"


BENCHMARKS = (
    Benchmark(
        "Start",
        "What a launch costs beside its workers: time and memory.",
        "startup.py",
        quick=("--repeat=1",),
        if_there={"etcd": "--etcd"},
        if_missing={"torch": "--no-torchrun"},
    ),
    Benchmark(
        "Supervision",
        "How fast a worker's end is answered, and what teed output and an idle launcher cost.",
        "supervision.py",
        quick=("--repeat=1", "--lines=1000", "--only=SIGTERM", "--only=tee"),
        if_missing={"torch": "--no-torchrun"},
    ),
    Benchmark(
        "Preloaded modules",
        "How soon eight workers have trained a step and reduced, at the start and after a failure.",
        "preload.py",
        quick=("--repeat=1", "--workers=2"),
        needs=("torch",),
    ),
    Benchmark(
        "The workers' store",
        "How soon workers are through their first collective operation.",
        "worker_store.py",
        quick=("--repeat=1",),
        needs=("torch",),
    ),
    Benchmark(
        "Many agents",
        "What agents of one job cost over c10d: real launchers on this machine.",
        "many_agents.py",
        quick=("--repeat=1", "--agents=2", "--many=4"),
        if_missing={"torch": "--no-torchrun"},
    ),
    Benchmark(
        "Rendezvous, c10d",
        "How long nodes take to meet that all call at once, and what that costs each of them.",
        "rendezvous.py",
        ("--backend=c10d", "--nodes=1024", "--repeat=3", "--peer=torch"),
        ("--backend=c10d", "--nodes=8", "--peer=torch", "--peer-nodes=8"),
        needs=("torch",),
    ),
    Benchmark(
        "Rendezvous, etcd",
        "The same over etcd, which runs on this machine as well.",
        "rendezvous.py",
        ("--backend=etcd-v2", "--nodes=256", "--repeat=3"),
        ("--backend=etcd-v2", "--nodes=8", "--peer-nodes=8"),
        needs=("etcd",),
        if_there={"torch": "--peer=torch"},
    ),
    Benchmark(
        "Membership, c10d",
        "How fast a job of several nodes answers arrival, loss and failure.",
        "membership.py",
        quick=("--repeat=1", "--only=failure"),
        needs=("torch",),
    ),
    Benchmark(
        "Membership, etcd",
        "The same over etcd, which runs on this machine as well.",
        "membership.py",
        ("--backend=etcd-v2",),
        ("--backend=etcd-v2", "--repeat=1", "--only=failure"),
        needs=("etcd",),
    ),
    Benchmark(
        "Restarts",
        "Where the time of a restart of two nodes goes, after one of eight workers was killed.",
        "restarts.py",
        quick=("--repeat=1", "--workers=1", "--no-torchrun"),
        needs=("torch",),
    ),
    Benchmark(
        "Events",
        "What it costs a launch to tell event handlers what happens.",
        "events.py",
        quick=("--repeat=1",),
        needs=("otel",),
    ),
    Benchmark(
        "plaunchctl",
        "What it costs a launch that plaunchctl can see it, and how soon plaunchctl answers.",
        "control.py",
        quick=("--repeat=1",),
    ),
    Benchmark(
        "Engines",
        "How soon the workers of one command for several nodes run, on this machine and over ssh.",
        "engines.py",
        quick=("--repeat=1", "--nodes=2", "--hosts=0"),
        if_missing={"torch": "--no-torchrun", "sshd": "--hosts=0"},
    ),
)


def find_missing() -> dict[str, str]:
    """Return the missing requirements, and why they are missing."""
    missing = {}
    if find_spec("torch") is None:
        missing["torch"] = "torch is not installed"
    if shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None:
        missing["sshd"] = "sshd is not installed"
    if find_spec("opentelemetry") is None:
        missing["otel"] = "opentelemetry is not installed"
    try:
        find_etcd()
        if find_spec("grpc") is None:
            missing["etcd"] = "grpcio is not installed"
    except EtcdUnavailableError as error:
        missing["etcd"] = str(error)
    return missing


def measure(
    benchmark: Benchmark,
    missing: Mapping[str, str],
    *,
    is_quick: bool,
    limit: float = LIMIT,
) -> Outcome:
    """Run one benchmark; every error is returned as its problem.

    Args:
        benchmark: the benchmark.
        missing: the result of `find_missing`.
        is_quick: whether to use the arguments of a quick run.
        limit: seconds after which it has failed.
    """
    argv = benchmark.argv(missing, is_quick=is_quick)
    outcome = Outcome(
        benchmark.title,
        benchmark.about,
        shlex.join(["python", f"benchmarks/{benchmark.script}", *argv]),
        [
            missing[need]
            for need in {**benchmark.if_there, **benchmark.if_missing}
            if need in missing
        ],
    )
    lacking = [missing[need] for need in benchmark.needs if need in missing]
    if lacking:
        outcome.problem = "; ".join(lacking)
        return outcome
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, "result.json")
        code, errors = _run(
            [os.path.join(FOLDER, benchmark.script), *argv, f"--json={path}"], limit
        )
        outcome.seconds = time.monotonic() - begin
        if code is None:
            outcome.problem = f"it did not end within {limit:g} s"
        elif code != 0:
            lines = [line for line in errors.splitlines() if line.strip()]
            outcome.problem = lines[-1].strip() if lines else f"it ended with exit code {code}"
        else:
            try:
                with open(path, encoding="utf-8") as file:
                    outcome.result = json.load(file)
            except (OSError, ValueError) as error:
                outcome.problem = f"it left no JSON object: {error}"
    return outcome


def _run(argv: Sequence[str], limit: float) -> tuple[int | None, str]:
    """Run a Python program; return its exit code (None at a time-out) and its stderr.

    At a time-out it gets SIGINT, and time to end its own processes.
    """
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, *argv],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        code: int | None = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(limit)
        finally:
            if process.poll() is None:
                _end(process)
        errors.seek(0)
        return code, errors.read().decode(errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the leader of a session with SIGINT, and the rest of the session with SIGKILL."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(END_LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run(chosen: Sequence[Benchmark], *, is_quick: bool) -> list[Outcome]:
    """Run benchmarks, and report progress on stderr."""
    missing = find_missing()
    outcomes = []
    for benchmark in chosen:
        print(f"{benchmark.title} ...", end=" ", file=sys.stderr, flush=True)
        outcomes.append(measure(benchmark, missing, is_quick=is_quick))
        print(outcomes[-1], file=sys.stderr, flush=True)
    return outcomes


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[Benchmark]]:
    """Return the options, and the selected benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="check in a minute or two that all of them work"
    )
    measuring.add_only(parser)
    parser.add_argument("--output", metavar="FILE", help="the page (docs/benchmarks.md)")
    parser.add_argument("--json", metavar="FILE", help="also write the data of the page")
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 if a goal is missed, or was not measured"
    )
    args = parser.parse_args(argv)
    chosen = measuring.choose(parser, args.only, ((one, [one.title]) for one in BENCHMARKS))
    if args.output is None and not args.quick and not args.only:
        args.output = PAGE
    return args, chosen


def main(argv: Sequence[str] | None = None) -> int:
    args, chosen = parse(argv)
    begin = time.monotonic()
    content = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(
            ["python", "benchmarks/run_all.py", *(sys.argv[1:] if argv is None else argv)]
        ),
        "is_quick": args.quick,
        "machine": machine.facts(),
        "versions": machine.versions(ROOT),
    }
    outcomes = run(chosen, is_quick=args.quick)
    content["seconds"] = round(time.monotonic() - begin)
    content["benchmarks"] = [asdict(outcome) for outcome in outcomes]
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=2)
    page = results_page.make_page(content)
    if args.output is None:
        print(page, end="")
    else:
        with open(args.output, "w", encoding="utf-8") as file:
            file.write(page)
    is_good = all(not outcome.problem and not outcome.missed for outcome in outcomes)
    return int(args.check and not is_good)


if __name__ == "__main__":
    # The running benchmark is interrupted, and ends its processes.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
