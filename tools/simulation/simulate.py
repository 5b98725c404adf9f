"""Runs whole jobs in the simulator, one for each seed.

    python tools/simulate --seeds=10000 [--first=SEED] [--store=job|tcp|etcd] [--cores=N]
    python tools/simulate --seeds=1 --first=SEED --history    # one run, in full
    python tools/simulate --shrink=SEED [--save=FILE]    # the smallest script that still fails
    python tools/simulate --explore=1000 [--first=SEED]    # scripts that hypothesis makes
    python tools/simulate --seeds=N --result=docs/results/simulate.json    # for the documentation
    python tools/simulate --scripts=FOLDER    # scripts that were saved
    python tools/simulate --commands --seeds=1000    # the command of --on, with simulated agents
    python tools/simulate --bugs=search --seeds=100    # which seed finds which deliberate bug

The simulator is plaunch_testing.simulation, and needs greenlet.
Exit code 1 if something was found; each finding has the command that repeats it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "reliability"))
try:
    from result_file import Run
finally:
    del sys.path[0]

STORES = ("job", "tcp", "etcd")
CHUNK = 50  # seeds that an interpreter reports at once
SHOWN = 10  # findings of one kind
TESTS = Path(__file__).parents[2] / "tests"
SCRIPTS = TESTS / "membership" / "found_by_simulation"


def main() -> int:  # noqa: PLR0911 - one for each mode
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=1000, help="how many (default: 1000)")
    parser.add_argument("--first", type=int, default=0, help="the first one (default: 0)")
    parser.add_argument("--store", choices=STORES, help="one kind of store (default: all)")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--hours", type=float, help="go on with further seeds for so long")
    parser.add_argument("--resume", metavar="FILE", help="keep in FILE which seed is next")
    parser.add_argument(
        "--result", metavar="FILE", help="write a result file (docs/reliability.md)"
    )
    parser.add_argument("--history", action="store_true", help="print the history of each run")
    parser.add_argument(
        "--bugs",
        nargs="?",
        const="known",
        metavar="search",
        choices=("known", "search"),
        help="put the bugs of the tests' list into plaunch, one after the other, and run the seed "
        "that finds it; `search` shows the first of all seeds that does",
    )
    parser.add_argument(
        "--shrink",
        type=int,
        metavar="SEED",
        help="leave out what the script of a seed needs not to fail, and print the run",
    )
    parser.add_argument(
        "--explore",
        type=int,
        metavar="N",
        help="let hypothesis make up to N scripts, and shrink one that fails",
    )
    parser.add_argument("--save", metavar="FILE", help="write the shrunk script, for a test")
    parser.add_argument(
        "--commands",
        action="store_true",
        help="run commands that drive simulated agents",
    )
    parser.add_argument("--scripts", metavar="FOLDER", help="run the scripts of a folder")
    parser.add_argument(
        "--part", nargs=2, type=int, metavar=("FIRST", "STEP"), help=argparse.SUPPRESS
    )
    args = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets of texts must not differ from run to run.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.argv])  # noqa: S606
    if args.part:
        return run_part(args)
    if args.commands:
        return run_commands(args)
    if args.scripts:
        return run_scripts(args)
    if args.explore:
        return explore(args)
    if args.shrink is not None:
        return shrink(args)
    if args.history:
        return show(args)
    if args.bugs:
        return find_bugs(args)
    return run_all(args)


def run_part(args: argparse.Namespace) -> int:
    """Run every `step`th seed in this interpreter, and write JSON lines with the results."""
    simulator, store = _create(args)
    first, step = args.part
    totals: Counter[str] = Counter()
    for number, seed in enumerate(range(first, args.first + args.seeds, step)):
        report = simulator.run_seed(seed, store)
        totals.update(runs=1, steps=report.steps, operations=report.operations)
        totals.update(rounds=report.rounds, faults=sum(report.faults.values()))
        totals.update(seconds=int(report.seconds))
        totals.update({f"fault {kind}": count for kind, count in report.faults.items()})
        totals.update({f"code {code}": 1 for code in set(report.exit_codes.values())})
        if report.findings:
            print(json.dumps({"seed": seed, "findings": list(report.findings)}), flush=True)
        if number % CHUNK == CHUNK - 1:
            print(json.dumps({"totals": totals}), flush=True)
            totals.clear()
    print(json.dumps({"totals": totals, "cpu": time.process_time()}), flush=True)
    return 0


def _create(args, **options):
    from plaunch_testing.simulation import Simulator, StoreKind

    return Simulator(**options), StoreKind(args.store) if args.store else None


def show(args: argparse.Namespace) -> int:
    """Print the whole history of each run."""
    simulator, store = _create(args, logs=True)
    has_found = False
    for seed in range(args.first, args.first + args.seeds):
        report = simulator.run_seed(seed, store)
        has_found |= bool(report.findings)
        print(report.describe(), end="\n\n")
    return int(has_found)


def shrink(args: argparse.Namespace) -> int:
    """Print the run of a seed with as few faults as still fail."""
    simulator, store = _create(args, logs=True)
    report = simulator.run_seed(args.shrink, store)
    if report.findings:
        report = simulator.run(simulator.shorten(report.script))
    return conclude(args, report)


def explore(args: argparse.Namespace) -> int:
    """Let hypothesis make scripts, and shrink the first one that fails."""
    # Before the simulator replaces modules: hypothesis has real clocks.
    from hypothesis import HealthCheck, Phase, find, settings
    from hypothesis import strategies as st
    from hypothesis.errors import NoSuchExample

    simulator, store = _create(args, logs=True)
    from plaunch_testing.simulation import make_script

    scripts = st.randoms(use_true_random=False).map(lambda one: make_script(one, args.first, store))
    try:
        found = find(
            scripts,
            lambda script: bool(simulator.run(script).findings),
            random=random.Random(args.first),  # noqa: S311 - not for secrets
            settings=settings(
                max_examples=args.explore,
                database=None,
                deadline=None,
                phases=[Phase.generate, Phase.shrink],
                suppress_health_check=list(HealthCheck),
            ),
        )
    except NoSuchExample:
        print(f"nothing found in {args.explore} scripts")
        return 0
    return conclude(args, simulator.run(simulator.shorten(found)))


def conclude(args: argparse.Namespace, report) -> int:
    """Print a run on one page, and save its script."""
    print(report.describe())
    if args.save and report.findings:
        Path(args.save).write_text(report.script.to_json() + "\n")
    return int(bool(report.findings))


def run_scripts(args: argparse.Namespace) -> int:
    """Run the scripts of a folder; each has failed once."""
    simulator, _ = _create(args)
    paths = sorted(Path(args.scripts).glob("*.json"))
    reports = {path: simulator.run(read_script(path)) for path in paths}
    failed = [path for path, report in reports.items() if report.findings]
    for path in failed:
        print(f"{path}:\n{reports[path].describe()}\n")
    print(f"{len(paths)} scripts, {len(failed)} with findings")
    return int(bool(failed))


def run_commands(args: argparse.Namespace) -> int:
    """Run commands that drive simulated agents."""
    simulator, _ = _create(args)
    codes: Counter[str] = Counter()
    failed = 0
    for seed in range(args.first, args.first + args.seeds):
        report = simulator.run_command(seed)
        codes.update([str(report.code)])
        failed += bool(report.findings)
        if args.history or report.findings:
            print(report.describe(), end="\n\n")
    named = ", ".join(f"{code} {count}" for code, count in codes.most_common())
    print(f"{args.seeds} commands, {failed} with findings; codes: {named}")
    return int(bool(failed))


def read_script(path: Path):
    """Read a script that was saved."""
    from plaunch_testing.simulation import Script

    return Script.from_json(path.read_text())


def find_bugs(args: argparse.Namespace) -> int:
    """Put one bug after the other into plaunch, and run seeds until it is found."""
    sys.path.insert(0, str(TESTS))
    simulator, store = _create(args)
    from helpers.simulated_bugs import BUGS

    checks: Counter[str] = Counter()
    missed = 0
    for bug in BUGS:
        is_known = args.bugs == "known"
        seeds = [bug.seed] if is_known else range(args.first, args.first + args.seeds)
        if isinstance(bug.seed, str):
            seeds = [read_script(SCRIPTS / f"{bug.seed}.json")]
        seed, findings = find_bug(simulator, bug, seeds, store)
        checks.update({finding.partition(":")[0] for finding in findings})
        missed += not findings
        name = bug.seed if isinstance(bug.seed, str) else f"seed {seed}"
        found = f"{name}: " if findings else "NOT FOUND: "
        print(f"{found}{bug.what}", *(f"    {each[:200]}" for each in findings), sep="\n")
        sys.stdout.flush()
    named = ", ".join(f"{name} ({count})" for name, count in sorted(checks.items()))
    print(f"{len(BUGS) - missed} of {len(BUGS)} bugs found, by these checks: {named}")
    return int(bool(missed))


def find_bug(simulator, bug, seeds, store):
    """Return the first of these seeds or scripts that finds a bug, and what it finds."""
    with bug.planted():
        for seed in seeds:
            if findings := find_in(simulator, seed, store):
                return seed, findings
    return -1, []


def find_in(simulator, seed, store) -> list[str]:
    """Return what is wrong with a run; also if the simulator itself cannot go on."""
    try:
        if not isinstance(seed, int):
            return list(simulator.run(seed).findings)
        return list(simulator.run_seed(seed, store).findings)
    except Exception as error:  # noqa: BLE001 - a finding
        return [f"simulator: {error!r}"]


def run_all(args: argparse.Namespace) -> int:
    """Run all seeds, and print the findings and totals."""
    first, run = args.first, Run("simulate")
    if args.resume and os.path.exists(args.resume):
        with open(args.resume) as file:
            first = int(file.read())
    until = None if args.hours is None else time.monotonic() + 3600 * args.hours
    totals: Counter[str] = Counter()
    findings: list[dict] = []
    began, cpu, start = time.monotonic(), 0.0, first
    while True:
        cpu += run_batch(args, first, totals, findings, began)
        first += args.seeds
        if args.resume:
            with open(args.resume, "w") as file:
                file.write(str(first))
        if until is None or time.monotonic() >= until:
            break
    print_totals(totals, findings, time.monotonic() - began, cpu)
    if args.result:
        figures = {
            "seeds": f"{start} to {first - 1}",
            "stores": args.store or ", ".join(STORES),
            "jobs": totals["runs"],
            "virtual days": round(totals["seconds"] / 86400, 1),
            "faults with an effect": totals["faults"],
            "rounds": totals["rounds"],
            "requests to the store": totals["operations"],
            "jobs with findings": len(findings),
        }
        run.write(args.result, figures, describe_kinds(findings))
    return int(bool(findings))


def run_batch(args, first, totals, findings, began) -> float:
    """Run `--seeds` seeds on all cores; return the CPU seconds."""
    command = [sys.executable, __file__, f"--seeds={args.seeds}", f"--first={first}"]
    if args.store:
        command.append(f"--store={args.store}")
    parts = [
        subprocess.Popen(
            [*command, "--part", str(first + core), str(args.cores)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for core in range(args.cores)
    ]
    cpu = 0.0
    # Each part writes little, so that reading one after the other blocks none of them for long.
    for part in parts:
        for line in part.stdout:
            record = json.loads(line)
            cpu += record.get("cpu", 0.0)
            if "totals" in record:
                totals.update(record["totals"])
                print_progress(totals["runs"], len(findings), began)
            else:
                findings.append(record)
    failed = [part.wait() for part in parts]
    if any(failed):
        raise SystemExit(f"an interpreter has ended with {failed}; its error is above")
    return cpu


def print_progress(runs: int, found: int, began: float) -> None:
    """Show a line of progress on a terminal."""
    if sys.stderr.isatty():
        rate = runs / max(time.monotonic() - began, 1e-9)
        print(
            f"\r{runs} runs, {rate:.0f} a second, {found} with findings ", end="", file=sys.stderr
        )


def print_totals(totals, findings, took, cpu) -> None:
    """Print what was found, by kind, and what the runs had."""
    runs = max(totals["runs"], 1)
    for kind, records in group_findings(findings):
        print(f"\n{len(records)} runs: {kind}")
        for record in records[:SHOWN]:
            print(f"  --first={record['seed']} --seeds=1: {record['findings'][0]}")
    print(
        f"\n{totals['runs']} jobs in {took:.1f} s, {cpu / runs * 1000:.1f} ms of CPU each, "
        f"{totals['seconds'] / 86400:.1f} virtual days; each had "
        f"{totals['faults'] / runs:.1f} faults with an effect, {totals['rounds'] / runs:.1f} "
        f"rounds and {totals['operations'] / runs:.0f} requests to the store; "
        f"{len(findings)} with findings"
    )
    for prefix in ("fault ", "code "):
        counts = {k[len(prefix) :]: n for k, n in totals.items() if k.startswith(prefix)}
        named = ", ".join(f"{name} {n}" for name, n in sorted(counts.items(), key=lambda e: -e[1]))
        print(f"{prefix.strip()}s: {named}")


def group_findings(findings) -> list[tuple[str, list[dict]]]:
    """Return the kinds of findings, the most frequent first, each with the runs that have it."""
    groups: dict[str, list[dict]] = {}
    for record in findings:
        for kind in {kind_of(text) for text in record["findings"]}:
            groups.setdefault(kind, []).append(record)
    return sorted(groups.items(), key=lambda each: -len(each[1]))


def describe_kinds(findings) -> list[str]:
    """Return a line for each kind of finding, with the first seed that has it."""
    return [f"{kind} (seed {records[0]['seed']})" for kind, records in group_findings(findings)]


def kind_of(finding: str) -> str:
    """Return a finding without names and numbers, so that equal ones are counted together."""
    words = (word for word in finding.split() if not any(c.isdigit() for c in word))
    return " ".join(words)[:80]


if __name__ == "__main__":
    sys.exit(main())
