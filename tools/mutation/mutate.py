"""Changes random lines of the core, one at a time, and runs the tests that execute them.

    tools/mutate --lines=300 --seed=1 [--cores=N] [--result=docs/results/mutations.json]
    tools/mutate --lines=300 --seed=1 --resume    # go on, and repeat the survivors
    tools/mutate --lines=20 --seed=2 --module=agent/loop.py    # of one module or folder
    tools/mutate --record=agent,process    # record these tests again

First it records which tests execute which lines, also in processes that tests start; this takes as
long as the suite, and is kept in build/mutation. Then it changes one line after the other, in a
copy of the checkout that only the tests of this change see, and runs the tests of the line, the
nearest and fastest first, until one fails. If none does, it runs simulated jobs.

Changes after which the program does the same are listed in tools/mutation/equivalents.json.
Exit code 1 if a change survives that is not listed there. It needs coverage and the permission to
create namespaces.
"""

from __future__ import annotations

import argparse
import difflib
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coverage_map import cores_of_this_machine
from mutation_run import MutationRun
from mutator import MARKERS, Mutator
from project import ROOT, SIMULATION, SOURCE, Project
from sandbox import SandboxError

sys.path.append(str(ROOT / "tools" / "reliability"))
from result_file import Run

if TYPE_CHECKING:
    from mutations import Mutation
    from mutator import Result

OUTCOMES = ("killed", "equivalent", "survived", "untested", "not run")


def run_all(project: Project, run: MutationRun, cores: int) -> None:
    """Run the tests of all changes that wait, several at once; show a line for each."""
    mutator = Mutator(project)
    listed = project.listed()
    waiting = [each for each in run.waiting() if each.key not in listed]
    free = [project.folder / f"core-{number}" for number in range(cores)]
    lock = threading.Lock()
    began = time.monotonic()
    done: Counter[str] = Counter()

    def run_one(mutation: Mutation) -> None:
        with lock:
            output = free.pop()
        try:
            result = mutator.run(mutation, output)
        finally:
            with lock:
                free.append(output)
        with lock:
            run.add(mutation, result)
            done[result.outcome] += 1
            counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(done.items()))
            print(
                f"{done.total()}/{len(waiting)} ({time.monotonic() - began:.0f} s; {counts}): "
                f"{result.outcome} in {result.seconds:.0f} s: {mutation.module}:{mutation.number}: "
                f"{mutation.what}" + (f" [{result.by}]" if result.by else ""),
                flush=True,
            )

    with ThreadPoolExecutor(cores) as pool:
        for future in [pool.submit(run_one, mutation) for mutation in waiting]:
            future.result()


def describe_survivor(project: Project, mutation: Mutation, result: Result) -> str:
    """Return a survivor with its difference."""
    source = (project.tree / mutation.module).read_text()
    lines = difflib.unified_diff(
        source.splitlines(), mutation.apply(source).splitlines(), lineterm="", n=1
    )
    place = f"{mutation.module}:{mutation.number} in {mutation.where or 'the module'}"
    head = f"{place}: {result.outcome}, {result.tests} tests"
    shown = [line for line in lines if not line.startswith(("---", "+++"))]
    return "\n".join([head, f"  {mutation.what}", *(f"    {line}" for line in shown)])


def conclude(project: Project, run: MutationRun, this_run: Run, path: Path | None) -> int:
    """Print and write what became of the changes; return the exit code."""
    listed = project.listed()
    findings = []
    counts: Counter[str] = Counter()
    kinds: dict[str, Counter[str]] = {}
    for mutation in run.chosen:
        result = run.results.get(mutation.key)
        if mutation.key in listed:
            outcome = "equivalent"
        elif result is None:
            outcome = "not run"
        else:
            outcome = result.outcome
        counts[outcome] += 1
        kinds.setdefault(mutation.what.partition(":")[0], Counter())[outcome] += 1
        if result is not None and outcome in {"survived", "untested"}:
            text = describe_survivor(project, mutation, result)
            print(f"\n{text}")
            findings.append(f"{mutation.module} in {mutation.where}: {mutation.what}")
    by = Counter(
        "simulation" if result.by.startswith("simulation") else "tests"
        for result in run.results.values()
        if result.outcome == "killed"
    )
    print(f"\n{len(run.chosen)} changes: " + ", ".join(f"{n} {o}" for o, n in counts.items()))
    for kind, outcomes in sorted(kinds.items()):
        print(f"  {kind}: " + ", ".join(f"{n} {o}" for o, n in sorted(outcomes.items())))
    if path is not None:
        figures: dict[str, Any] = {
            "changes": len(run.chosen),
            **{outcome: counts[outcome] for outcome in OUTCOMES},
            "survived at first": len(run.survivors & {each.key for each in run.chosen}),
            "killed by tests": by["tests"],
            "killed by simulated jobs": by["simulation"],
            "seconds for all": round(sum(each.seconds for each in run.results.values())),
            "recorded tests": ", ".join(project.map.parts()),
        }
        figures |= {kind: dict(outcomes) for kind, outcomes in sorted(kinds.items())}
        this_run.write(path, figures, findings)
    return int(bool(findings))


def record_parts(project: Project, names: list[str], cores: int) -> None:
    """Record which tests execute which lines."""
    parts = project.parts()
    if unknown := set(names) - set(parts):
        raise SystemExit(f"no such tests: {', '.join(sorted(unknown))}; choose from {list(parts)}")
    for name in names:
        print(f"recording {name}: {' '.join(parts[name])}", flush=True)
        if name == SIMULATION:
            project.map.record_command(name, parts[name])
        else:
            project.map.record(name, [*parts[name], "-m", MARKERS], cores)


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--lines", type=int, default=300, help="how many (default: 300)")
    parser.add_argument("--seed", type=int, default=0, help="which ones (default: 0)")
    parser.add_argument("--module", default="", help="only those of a module or folder of the core")
    parser.add_argument("--cores", type=int, default=cores_of_this_machine())
    parser.add_argument("--resume", action="store_true", help="go on, and repeat the survivors")
    parser.add_argument(
        "--record",
        metavar="PART,...",
        help="record which lines the tests of these folders execute, and nothing else",
    )
    parser.add_argument(
        "--recorded",
        action="store_true",
        help="use what has been recorded, even if tests of some folders have not been",
    )
    parser.add_argument("--result", metavar="FILE", type=Path, help="write a result file")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    parser.add_argument("--source", default=SOURCE, help=argparse.SUPPRESS)
    args = parser.parse_args()
    this_run = Run("mutate")
    with Project.copied(args.root.resolve(), args.source) as project:
        return run_command(project, args, this_run)


def run_command(project: Project, args: argparse.Namespace, this_run: Run) -> int:
    """Record tests, or change lines."""
    try:
        project.sandbox(project.folder / "check").check()
    except SandboxError as error:
        print(f"tools/mutate: {error}", file=sys.stderr)
        return 2
    if args.record:
        record_parts(project, args.record.split(","), args.cores)
        return 0
    if not args.recorded:
        recorded = project.map.parts()
        record_parts(project, [p for p in project.parts() if p not in recorded], args.cores)
    path = project.folder / f"run-{args.seed}{args.module.replace('/', '-')}.jsonl"
    mutations = project.mutations(args.module)
    if args.resume and path.exists():
        run = MutationRun.resume(path, mutations)
    else:
        run = MutationRun.choose(path, mutations, args.lines, args.seed)
    try:
        run_all(project, run, args.cores)
    except KeyboardInterrupt:
        print("interrupted; --resume goes on", file=sys.stderr)
    return conclude(project, run, this_run, args.result)


if __name__ == "__main__":
    sys.exit(main())
