"""Runs jobs of real agents with real faults, one seed after the other, for some time.

    tools/soak --minutes=60 [--seed=N] [--parallel=K] [--result=docs/results/soak.json]
    tools/soak --seeds=5 [--kinds=job,engine]    # so many seeds instead
    tools/soak --minutes=60 --resume=FILE    # goes on where FILE says that the last run has ended

The jobs are those of tests/fault_injection: over c10d, TCPStore and etcd, with cut cables as root,
with forked workers, and with the command of --on. The checks are those of the simulator. A run is
repeated with `--seeds=1 --seed=N`, with the same --kinds. Exit code 1 if something was found.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools" / "reliability")]

from fault_injection import engine_jobs, jobs  # noqa: E402 - found in the folder above
from plaunch_testing.simulation import FaultKind  # noqa: E402
from result_file import Run  # noqa: E402

from helpers.engine_clusters import LocalNodes, SshNodes  # noqa: E402
from helpers.machine_parts import find_missing  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch_testing.simulation.record import RunRecord

MINUTE = 60.0  # seconds between two lines of progress
# The kinds of runs take turns.
KINDS = ("job", "cables", "job", "engine", "preload", "job", "ssh", "engine")
# Checks whose findings are wrong exit codes.
CODES = ("codes", "explained", "successes")


class Soak:
    """Runs of one seed after the other, and what is known of them.

    Args:
        kinds: the kinds of runs, which take turns.
        first: the first seed.
    """

    def __init__(self, kinds: tuple[str, ...], first: int) -> None:
        self.next = first
        self.seconds = 0.0  # of earlier parts of a soak that was resumed
        self.totals: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.runs: Counter[str] = Counter()
        self.codes: Counter[str] = Counter()
        self.findings: dict[str, list[str]] = {}  # by their kind
        self._kinds = kinds
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._cables = threading.Lock()  # networks may have the same addresses
        self._clusters = {
            kind: create()
            for kind, create in {"engine": LocalNodes, "ssh": lambda: SshNodes(6)}.items()
            if kind in kinds
        }

    # --- runs -------------------------------------------------------------------------------------

    def run_until(self, is_over: Callable[[int], bool]) -> None:
        """Run seeds on this thread; `is_over` says whether a seed is not to be run any more."""
        while True:
            with self._lock:
                seed = self.next
                if is_over(seed):
                    return
                self.next += 1
            self._run(seed)

    def _run(self, seed: int) -> None:
        kind = self._kinds[seed % len(self._kinds)]
        self.runs[kind] += 1

        def report(job: jobs.Job | engine_jobs.Job, findings: list[str]) -> None:
            with self._lock:
                self._count(seed, kind, job.record, findings)

        try:
            if kind in self._clusters:
                text = engine_jobs.run(self._clusters[kind], seed, report)
            elif kind == "cables":
                with self._cables:
                    text = jobs.run(None, seed, cables=True, report=report)
            else:
                preload = "decimal" if kind == "preload" else ""
                text = jobs.run(None, seed, preload=preload, report=report)
        except Exception as error:  # noqa: BLE001 - a finding, too
            text = f"seed {seed}: {error!r}"
            with self._lock:
                self._add(f"soak: {error!r}", seed, kind)
        if text:
            print(f"{kind}, {text}\n", flush=True)

    def _count(self, seed: int, kind: str, record: RunRecord, findings: list[str]) -> None:
        self.totals.update(
            launches=len(record.nodes),
            rounds=len(record.rounds),
            restarts=sum(one.number > 0 for one in record.rounds),
            lines=sum(one.wrote for one in record.outputs),
        )
        self.totals["orphans"] += sum(left.startswith("process") for left in record.leftovers)
        self.totals["lost lines"] += sum(
            max(one.wrote - one.shown, 0) for one in record.outputs if not one.may_be_cut
        )
        self.totals["wrong codes"] += sum(text.partition(":")[0] in CODES for text in findings)
        for fault in record.faults:
            # What hits the host of the store is a fault of the store, too.
            if fault.had_effect and fault.kind not in (FaultKind.STORE_SLOW, FaultKind.STORE_LOSS):
                self.faults[fault.kind.value] += 1
        self.codes.update(
            str(code) for code in {one.exit_code for one in record.nodes} if code is not None
        )
        for finding in findings:
            self._add(finding, seed, kind)

    def _add(self, finding: str, seed: int, kind: str) -> None:
        self.findings.setdefault(kind_of(finding), []).append(f"{finding} (seed {seed}, {kind})")

    def close(self) -> None:
        """End the nodes."""
        for cluster in self._clusters.values():
            cluster.close()

    # --- results ----------------------------------------------------------------------------------

    @property
    def elapsed(self) -> float:
        """Seconds, with those of earlier parts."""
        return self.seconds + time.monotonic() - self._began

    def figures(self) -> dict[str, object]:
        """Return the figures of the result file."""
        totals = self.totals
        return {
            "minutes": round(self.elapsed / MINUTE, 1),
            "jobs": sum(self.runs.values()),
            "jobs by kind": dict(self.runs),
            "launchers": totals["launches"],
            "rounds": totals["rounds"],
            "restarts": totals["restarts"],
            "faults": sum(self.faults.values()),
            "faults by kind": dict(self.faults.most_common()),
            "jobs with an exit code": dict(self.codes.most_common()),
            "lines of workers": totals["lines"],
            "orphans": totals["orphans"],
            "lost lines": totals["lost lines"],
            "wrong codes": totals["wrong codes"],
            "findings": sum(map(len, self.findings.values())),
            "next seed": self.next,
        }

    def progress(self) -> str:
        """Return a line of progress."""
        return (
            f"{self.elapsed / MINUTE:.0f} min: {sum(self.runs.values())} jobs, "
            f"{self.totals['launches']} launchers, {sum(self.faults.values())} faults, "
            f"{self.totals['restarts']} restarts, {len(self.findings)} kinds of findings; "
            f"next seed {self.next}"
        )

    def save(self, path: Path) -> None:
        """Write what `load` reads."""
        counts = {name: dict(getattr(self, name)) for name in ("totals", "faults", "runs", "codes")}
        state = {**counts, "findings": self.findings, "next": self.next, "seconds": self.elapsed}
        part = path.with_suffix(".part")
        part.write_text(json.dumps(state))
        part.replace(path)

    def load(self, path: Path) -> None:
        """Go on where another soak has ended."""
        state = json.loads(path.read_text())
        for name in ("totals", "faults", "runs", "codes"):
            getattr(self, name).update(state[name])
        self.findings, self.next, self.seconds = state["findings"], state["next"], state["seconds"]


def kind_of(finding: str) -> str:
    """Return a finding without names and numbers, so that equal ones are counted together."""
    words = (word for word in finding.split() if not any(c.isdigit() for c in word))
    return " ".join(words)[:80]


def usable_kinds(wanted: str) -> tuple[str, ...]:
    """Return the kinds of runs that this machine can do, of those that are wanted."""
    known = tuple(dict.fromkeys(KINDS))
    chosen = wanted.split(",") if wanted else list(known)
    for kind in chosen:
        if kind not in known:
            raise SystemExit(f"unknown kind {kind!r} in --kinds; choose from {', '.join(known)}")
    for kind, part in (("cables", "networks"), ("ssh", "ssh")):
        if kind in chosen and (missing := find_missing(part)):
            print(f"no jobs of the kind {kind}: {missing}", file=sys.stderr)
            chosen.remove(kind)
    return tuple(kind for kind in KINDS if kind in chosen)


def handle_signals() -> None:
    """Handle signals that a script or nohup lets this process ignore.

    Programs that it starts would ignore them, too; those that are handled here they do not.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for signum in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, lambda signum, frame: None)


def print_results(soak: Soak) -> None:
    """Print the figures, and what was found."""
    for name, value in soak.figures().items():
        print(f"{name}: {value}")
    for kind, found in sorted(soak.findings.items(), key=lambda each: -len(each[1])):
        print(f"\n{len(found)} times: {kind}")
        print(*(f"    {text[:300]}" for text in found[:5]), sep="\n")


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="for so long (60)")
    parser.add_argument("--seeds", type=int, help="run so many seeds instead")
    parser.add_argument("--seed", type=int, default=1, help="the first seed (1)")
    parser.add_argument("--parallel", type=int, default=2, help="jobs at a time (2)")
    parser.add_argument("--kinds", default="", help=f"of {', '.join(dict.fromkeys(KINDS))} (all)")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep in FILE where to go on")
    parser.add_argument("--result", type=Path, metavar="FILE", help="write the result file")
    args = parser.parse_args()
    handle_signals()
    result = Run("soak")
    soak = Soak(usable_kinds(args.kinds), args.seed)
    if args.resume and args.resume.exists():
        soak.load(args.resume)
    until = time.monotonic() + args.minutes * MINUTE
    last = None if args.seeds is None else soak.next + args.seeds
    is_interrupted = threading.Event()

    def is_over(seed: int) -> bool:
        is_done = time.monotonic() >= until if last is None else seed >= last
        return is_done or is_interrupted.is_set()

    threads = [
        threading.Thread(target=soak.run_until, args=(is_over,)) for _ in range(args.parallel)
    ]
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            shown = time.monotonic()
            for thread in threads:
                thread.join(max(shown + MINUTE - time.monotonic(), 0.0))
            print(soak.progress(), flush=True)
            if args.resume:
                soak.save(args.resume)
    except KeyboardInterrupt:
        print("interrupted: the jobs that run come to their end", file=sys.stderr)
        is_interrupted.set()
        for thread in threads:
            thread.join()
    finally:
        is_interrupted.set()
        soak.close()
    print_results(soak)
    if args.resume:
        soak.save(args.resume)
    if args.result:
        found = [texts[0][:300] for texts in soak.findings.values()]
        result.write(args.result, soak.figures(), found)
    return int(bool(soak.findings))


if __name__ == "__main__":
    os.environ.pop("PYTHONUNBUFFERED", None)
    sys.exit(main())
