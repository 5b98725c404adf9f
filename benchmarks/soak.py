"""The chaos tests again and again: one failure in a hundred runs is a failure.

    python benchmarks/soak.py                        # all of them, a hundred times
    python benchmarks/soak.py --count 20 -- -k killed
    python benchmarks/soak.py --launches 200 --count 1 -- tests/e2e/test_chaos_launches.py

Every run is a test run of its own, with a temporary directory of its own. It must pass, and must
leave neither a process nor a file in that directory. The first run that does not ends the soak;
what it printed is shown, and its directory is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import positive

ROOT = Path(__file__).resolve().parent.parent
TESTS = ("tests/process/functions/test_chaos*.py", "tests/e2e/test_chaos*.py")
LIMIT = 1800.0  # seconds for one run
GRACE = 5.0  # seconds for helpers (multiprocessing's, a guard) that end when the test run has
MARK = "PLAUNCH_SOAK"


def marked(mark: str) -> dict[int, str]:
    """The living processes with this mark in their environment, and what they run."""
    found = {}
    for path in glob.glob("/proc/[0-9]*/environ"):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            if f"{MARK}={mark}".encode() in file.read().split(b"\0"):
                pid = int(path.split("/")[2])
                with open(f"/proc/{pid}/cmdline", "rb") as command:
                    found[pid] = command.read().replace(b"\0", b" ").decode(errors="replace")
    return found


def left_behind(mark: str) -> dict[int, str]:
    """What is still there after the grace; it is ended."""
    deadline = time.monotonic() + GRACE
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.01)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return left


def run_once(words: list[str], folder: str, env: dict[str, str]) -> tuple[str, str]:
    """Run the tests once; what is wrong, if anything is, and what they printed."""
    mark = os.urandom(8).hex()
    temporary = os.path.join(folder, "tmp")
    os.mkdir(temporary)
    base = os.path.join(folder, "pytest")
    argv = [sys.executable, "-m", "pytest", "-q", "-x", f"--basetemp={base}", *words]
    # To a file: a pipe would be waited for as long as anybody holds it.
    with open(os.path.join(folder, "output"), "w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            argv,
            cwd=ROOT,
            env={**env, MARK: mark, "TMPDIR": temporary},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        left = left_behind(mark)
        output.seek(0)
        printed = output.read()
    if process.returncode != 0:
        return f"exit code {process.returncode}", printed
    if left:
        return f"processes left: {left}", printed
    if files := os.listdir(temporary):
        return f"files left in {temporary}: {files}", printed
    return "", printed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=positive, default=100, metavar="N", help="default: 100")
    parser.add_argument(
        "--launches",
        type=positive,
        metavar="N",
        help="launches in tests/e2e/test_chaos_launches.py",
    )
    parser.add_argument("--slow", action="store_true", help="also the tests marked slow")
    parser.add_argument(
        "words", nargs="*", help="files to run instead of all chaos tests, options of pytest"
    )
    args = parser.parse_args()
    env = dict(os.environ)
    if args.launches:
        env["CHAOS_LAUNCHES"] = str(args.launches)
    words = list(args.words)
    if not any(word.partition("::")[0].endswith(".py") for word in words):
        words += sorted(str(path) for pattern in TESTS for path in ROOT.glob(pattern))
    if not args.slow:
        words += ["-m", "not slow"]
    taken: list[float] = []
    for number in range(1, args.count + 1):
        folder = tempfile.mkdtemp(prefix="soak_")
        begin = time.monotonic()
        problem, printed = run_once(words, folder, env)
        taken.append(time.monotonic() - begin)
        if problem:
            print(printed)
            print(f"run {number} of {args.count}: {problem}; everything of it is in {folder}")
            return 1
        summary = printed.strip().rpartition("\n")[2]
        print(f"run {number} of {args.count}: {summary}", flush=True)
        subprocess.run(["rm", "-rf", folder], check=True)
    print(f"{args.count} runs without a failure, {statistics.median(taken):.1f} s each")
    return 0


if __name__ == "__main__":
    sys.exit(main())
