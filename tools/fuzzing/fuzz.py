"""Fuzzes what reads the bytes of others, guided by the lines that an input reaches.

    python tools/fuzz TARGET --seconds=60    # CPU seconds; --all is every target
    python tools/fuzz --all --seconds=300 --result=docs/results/fuzz.json
    python tools/fuzz TARGET --reduce    # keep the smallest inputs that reach the same
    python tools/fuzz TARGET --input=FILE    # check one input
    python tools/fuzz --list

The targets are in tests/helpers/fuzz_targets, and their inputs in tests/fuzzing/corpus. New inputs
are kept in build/fuzz, until --reduce moves those that reach more into the repository. A finding is
shortened, and becomes a file `found-...` there: the suite checks all of these files. Needs atheris.
Exit code 1 if something was found.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORK = ROOT / "build" / "fuzz"
MOST_KINDS = 20  # of findings in one run
FOUND = ("crash", "timeout", "oom")  # names of files; a slow unit may be slow for lack of CPU time
MEMORY = 4 << 30  # bytes that a process may have
TRIES = 5000  # to shorten a finding
CPU_LIMIT = 30.0  # seconds for one input, which is interrupted then
WALL_LIMIT = 1800  # seconds, for one that cannot be interrupted

for folder in ("tests", "tools/reliability"):
    sys.path.insert(0, str(ROOT / folder))

from result_file import Result, Run  # noqa: E402

from helpers import fuzz_targets  # noqa: E402


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target", nargs="?", choices=fuzz_targets.NAMES, metavar="TARGET")
    parser.add_argument("--all", action="store_true", help="every target, one after the other")
    parser.add_argument("--seconds", type=float, default=60.0, help="of CPU time, for each target")
    parser.add_argument("--cores", type=int, default=1, help="targets at a time (default: 1)")
    parser.add_argument(
        "--result", metavar="FILE", help="add to a result file (docs/reliability.md)"
    )
    parser.add_argument("--reduce", action="store_true", help="reduce the inputs of the repository")
    parser.add_argument("--input", metavar="FILE", help="check one input")
    parser.add_argument("--list", action="store_true", help="list the targets")
    parser.add_argument(
        "--seed", type=int, default=0, help="of its choices; 0 is another each time"
    )
    parser.add_argument("--child", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--work", metavar="FOLDER", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.list:
        for name in fuzz_targets.NAMES:
            print(f"{name:14} {fuzz_targets.load(name).about}")
        return 0
    if not (args.target or args.all):
        parser.error("name a target, or give --all")
    if args.child:
        return fuzz_here(args)
    names = [args.target] if args.target else list(fuzz_targets.NAMES)
    if args.input:
        return check_input(args.target, Path(args.input).read_bytes())
    if args.reduce:
        for name in names:
            reduce(name)
        return 0
    return fuzz_all(names, args)


# --- the process that fuzzes ----------------------------------------------------------------------


def fuzz_here(args: argparse.Namespace) -> int:
    """Fuzz one target in this process, and leave figures and findings in a folder."""
    import atheris

    with atheris.instrument_imports(include=["plaunch", *_plugins()], enable_loader_override=False):
        target = fuzz_targets.load(args.target)
    folder = Path(args.child)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    kinds: set[str] = set()
    runs = 0
    began = time.process_time()  # what was imported does not count

    def finish(*_: object) -> None:
        figures = {"runs": runs, "cpu": time.process_time() - began}
        (folder / "figures.json").write_text(json.dumps(figures))
        sys.stdout.flush()
        os._exit(0)

    def test(data: bytes) -> None:
        nonlocal runs
        if runs % 16 == 0 and time.process_time() - began > args.seconds:
            finish()
        runs += 1
        try:
            # With counters in each line, everything takes several times as long.
            with fuzz_targets.interrupted(CPU_LIMIT):
                fuzz_targets.run_input(target, data, 5 * fuzz_targets.MAX_SECONDS)
        except Exception as error:  # noqa: BLE001 - a finding
            kind = fuzz_targets.kind_of(error)
            if kind not in kinds:
                kinds.add(kind)
                name = hashlib.sha256(kind.encode()).hexdigest()[:12]
                (folder / f"crash-{name}").write_bytes(data)
                print(f"found: {kind}", flush=True)
            if len(kinds) >= MOST_KINDS:
                finish()

    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, finish)
    work, own = Path(args.work or folder / "work"), fuzz_targets.CORPUS / args.target
    work.mkdir(parents=True, exist_ok=True)
    words = folder / "words"
    words.write_text("".join(f'"{_escape(word)}"\n' for word in target.words))
    options = [
        f"-max_len={target.max_length}",
        f"-artifact_prefix={folder}/",
        f"-dict={words}",
        f"-timeout={WALL_LIMIT}",
        f"-rss_limit_mb={MEMORY >> 20}",
        "-len_control=20",
        f"-seed={args.seed}",
        "-handle_int=0",
        "-handle_term=0",
    ]
    atheris.Setup([sys.argv[0], *options, str(work), *([str(own)] if own.is_dir() else [])], test)
    atheris.Fuzz()
    return 0


def _plugins() -> list[str]:
    return [path.name for path in (ROOT / "plugins").glob("*/plaunch_*")]


def _escape(word: bytes) -> str:
    return "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\x{byte:02X}" for byte in word
    )


# --- the process that starts it -------------------------------------------------------------------


def fuzz_all(names: list[str], args: argparse.Namespace) -> int:
    """Fuzz targets, print and write what was found."""
    run = Run("fuzz")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends the processes that fuzz
    with ThreadPoolExecutor(args.cores) as pool:
        rows = dict(zip(names, pool.map(lambda name: fuzz(name, args), names), strict=True))
    found = [f"{name}: {kind}" for name, row in rows.items() for kind in row.pop("found")]
    if args.result:
        write_result(run, Path(args.result), rows, found)
    return int(bool(found))


def fuzz(name: str, args: argparse.Namespace) -> dict:
    """Fuzz one target in a process of its own; return its figures and findings."""
    with tempfile.TemporaryDirectory(prefix=f"plaunch-fuzz-{name}-") as path:
        folder = Path(path)
        command = [
            sys.executable,
            __file__,
            name,
            f"--seconds={args.seconds}",
            f"--seed={args.seed}",
        ]
        command += [f"--child={folder}", f"--work={WORK / name}"]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False
        )
        edges = [int(number) for number in re.findall(r"\bcov: (\d+)", done.stderr)]
        try:
            figures = json.loads((folder / "figures.json").read_text())
        except OSError:
            figures = {"runs": 0, "cpu": 0.0}
            print(f"{name}: the process has ended with {done.returncode}")
            print(*done.stderr.splitlines()[-30:], sep="\n")
        artifacts = sorted(path for kind in FOUND for path in folder.glob(f"{kind}-*"))
        found = [describe(name, path.read_bytes()) for path in artifacts]
        if not (folder / "figures.json").exists() and not found:
            found = [f"the process has ended with {done.returncode}"]
    print(
        f"{name}: {figures['runs']} inputs in {figures['cpu']:.0f} s of CPU time, "
        f"{max(edges, default=0)} edges, {len(found)} findings",
        flush=True,
    )
    return {
        "executions": figures["runs"],
        "CPU seconds": round(figures["cpu"]),
        "edges": max(edges, default=0),
        "found": found,
    }


def describe(name: str, data: bytes) -> str:
    """Shorten an input that fails, keep it in the corpus, and print it; return what is wrong."""
    target = fuzz_targets.load(name)
    kind = find_kind(target, data)
    if kind is None:
        print(f"{name}: {data[:200]!r} fails only beside other inputs")
        return "an input that fails only beside others"
    data = shorten(target, data, kind)
    place = fuzz_targets.CORPUS / name
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"found-{hashlib.sha256(data).hexdigest()[:12]}"
    path.write_bytes(data)
    print(f"{name}: {path.relative_to(ROOT)}: {kind}\n  {data[:300]!r}", flush=True)
    return kind


def find_kind(target, data: bytes) -> str | None:
    """Return what is wrong with the result of an input; None if nothing is."""
    try:
        fuzz_targets.run_input(target, data, max_seconds=fuzz_targets.MAX_SECONDS / 2)
    except Exception as error:  # noqa: BLE001 - a finding
        return fuzz_targets.kind_of(error)
    return None


def shorten(target, data: bytes, kind: str) -> bytes:
    """Leave out and replace bytes of an input as long as it fails in the same way."""
    tries, size = 0, len(data)
    while size and tries < TRIES:
        at = 0
        while at < len(data) and tries < TRIES:
            tries += 1
            shorter = data[:at] + data[at + size :]
            if find_kind(target, shorter) == kind:
                data = shorter
            else:
                at += size
        size //= 2
    return data


def write_result(run: Run, path: Path, rows: dict, found: list[str]) -> None:
    """Add the figures to those of earlier runs; others may do so at the same time."""
    WORK.mkdir(parents=True, exist_ok=True)
    with open(WORK / "result.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _add_figures(run, path, rows, found)


def _add_figures(run: Run, path: Path, rows: dict, found: list[str]) -> None:
    before = Result.read(path).figures if path.exists() else {}
    for name, row in rows.items():
        row["inputs kept"] = len(fuzz_targets.corpus_of(name))
        for column in ("executions", "CPU seconds"):
            row[column] += before.get(name, {}).get(column, 0)
    run.write(path, {**before, **rows}, found)


def check_input(name: str, data: bytes) -> int:
    """Check one input, and show the whole error."""
    try:
        fuzz_targets.run_input(fuzz_targets.load(name), data)
    except Exception:  # noqa: BLE001 - a finding
        traceback.print_exc()
        return 1
    return 0


# --- the corpora ----------------------------------------------------------------------------------


def reduce(name: str) -> None:
    """Keep the smallest inputs that together reach what all of them reach, and all findings."""
    target = fuzz_targets.load(name)
    own = fuzz_targets.corpus_of(name)
    known = [path for path in own if path.name.startswith(("found-", "case-"))]
    others = [*(path for path in own if path not in known), *(WORK / name).glob("*")]
    reached: set[object] = set()
    for path in known:
        reached |= arcs_of(target, path.read_bytes())
    kept: dict[str, bytes] = {}
    for data in sorted({path.read_bytes() for path in others}, key=lambda data: (len(data), data)):
        new = arcs_of(target, data) - reached
        if new:
            reached |= new
            kept[hashlib.sha256(data).hexdigest()[:12]] = data
    # Later inputs may reach all that an earlier one does.
    arcs = {key: arcs_of(target, data) for key, data in kept.items()}
    for key in list(kept):
        if arcs[key] <= set().union(*(arcs[one] for one in kept if one != key)):
            del kept[key]
    for path in own:
        if path not in known:
            path.unlink()
    for key, data in kept.items():
        (fuzz_targets.CORPUS / name / key).write_bytes(data)
    shutil.rmtree(WORK / name, ignore_errors=True)
    print(f"{name}: {len(kept) + len(known)} inputs, {len(reached)} arcs")


def arcs_of(target, data: bytes) -> set[object]:
    """Return the pairs of lines of plaunch that follow each other while an input is checked."""
    found: set[object] = set()

    def trace(frame, event, arg):
        del arg
        name = frame.f_code.co_filename
        if "plaunch" not in name.rpartition("/plugins/")[2] and "/core/plaunch/" not in name:
            return None
        last = 0

        def step(frame, event, arg):
            nonlocal last
            del arg
            if event == "line":
                found.add((name, last, frame.f_lineno))
                last = frame.f_lineno
            return step

        return step

    sys.settrace(trace)
    try:
        target.check(data)
    except Exception as error:  # noqa: BLE001 - a finding
        found.add(fuzz_targets.kind_of(error))
    finally:
        sys.settrace(None)
    return found


if __name__ == "__main__":
    sys.exit(main())
