"""Which tests execute a line: made once, a folder of tests at a time, and kept."""

from __future__ import annotations

import difflib
import functools
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import coverage
from sandbox import OUTPUT, Sandbox
from traced import CONFIG_VARIABLE, KEY_VARIABLE, RESULTS_VARIABLE, key_of

if TYPE_CHECKING:
    from collections.abc import Iterable

HERE = Path(__file__).parent
CPU_SECONDS = 4 * 3600.0
WALL_SECONDS = 4 * 3600.0

CONFIG = """\
[run]
source = {source}
data_file = {output}/lines
parallel = true
context = ${{{key}-}}
patch = _exit, fork
disable_warnings = no-data-collected, module-not-measured, already-imported, no-sysmon
"""


@dataclass(frozen=True)
class CoveringTest:
    """A test that has been recorded.

    Args:
        nodeid: its name for pytest.
        seconds: how long it took, while it was recorded.
    """

    nodeid: str
    seconds: float

    @property
    def path(self) -> str:
        """The file that has it."""
        return self.nodeid.partition("::")[0]


@dataclass(frozen=True)
class CoverageMap:
    """All parts that have been recorded.

    Args:
        folder: where they are kept.
        root: the checkout.
        tree: the copy of it that is tested.
        source: the package whose lines are recorded, relative to the checkout.
    """

    folder: Path
    root: Path
    tree: Path
    source: str

    def parts(self) -> list[str]:
        """Return the names of the recorded parts."""
        return sorted(path.stem for path in self.folder.glob("*.json"))

    def record(self, part: str, tests: list[str], cores: int) -> None:
        """Run tests, and keep which lines each executes.

        Args:
            part: the name of what is recorded.
            tests: words for pytest that choose tests.
            cores: how many tests run at once.
        """
        pytest = [sys.executable, str(HERE / "run_tests.py"), "-q", "-p", "traced", f"-n{cores}"]
        words = [*pytest, "-p", "no:cacheprovider", *tests]
        seconds = self._run(part, [f"{RESULTS_VARIABLE}={OUTPUT}/results"], words)
        results = self.folder / f"{part}.new" / "results"
        if not results.exists():
            raise SystemExit(f"tests of {part} cannot be recorded: {part}.log says why")
        self._keep(part, json.loads(results.read_text()), seconds)

    def record_command(self, part: str, command: list[str]) -> None:
        """Run a command, and keep which lines it executes, as if it were a test."""
        key = key_of(part)
        environment = [f"{KEY_VARIABLE}={key}", f"COVERAGE_PROCESS_START={OUTPUT}/config"]
        seconds = self._run(part, environment, command)
        result = {"seconds": round(seconds, 1), "outcome": "passed", "key": key}
        self._keep(part, {part: result}, seconds)

    def _run(self, part: str, environment: list[str], command: list[str]) -> float:
        """Run a command that writes to the folder of a new part; return the seconds."""
        output = self.folder / f"{part}.new"
        output.mkdir(parents=True, exist_ok=True)
        for path in output.iterdir():
            path.unlink()
        config = CONFIG.format(key=KEY_VARIABLE, source=self.root / self.source, output=OUTPUT)
        (output / "config").write_text(config)
        began = time.monotonic()
        Sandbox(self.root, self.tree, output).run(
            [
                "env",
                f"{CONFIG_VARIABLE}={OUTPUT}/config",
                *environment,
                *command,
            ],
            cpu=CPU_SECONDS,
            wall=WALL_SECONDS,
            log=self.folder / f"{part}.log",
        )
        return time.monotonic() - began

    def _keep(self, part: str, results: dict[str, dict], seconds: float) -> None:
        output = self.folder / f"{part}.new"
        merged = coverage.Coverage(data_file=str(self.folder / f"{part}.lines"), config_file=False)
        merged.combine([str(path) for path in output.glob("lines.*")], strict=False)
        merged.save()
        record = {
            "tests": results,
            "sources": {
                str(path.relative_to(self.tree)): path.read_text().splitlines()
                for path in sorted((self.tree / self.source).rglob("*.py"))
            },
            "seconds": round(seconds, 1),
        }
        (self.folder / f"{part}.json").write_text(json.dumps(record))
        for path in output.iterdir():
            path.unlink()
        output.rmdir()

    def covering(self, module: str, lines: Iterable[int]) -> set[CoveringTest]:
        """Return the tests that execute one of these lines of a module as it is now."""
        now = (self.tree / module).read_text().splitlines()
        found: set[CoveringTest] = set()
        for part in self.parts():
            recorded = _read_part(self.folder / f"{part}.json")
            then = recorded["sources"].get(module)
            if then is None:
                continue
            old = _line_numbers(tuple(now), tuple(then))
            keys = _keys_by_line(self.folder / f"{part}.lines", str(self.root / module))
            by_key = {each["key"]: name for name, each in recorded["tests"].items()}
            for line in lines:
                for key in keys.get(old.get(line, 0), ()):
                    name = by_key.get(key)
                    if name is not None and recorded["tests"][name]["outcome"] == "passed":
                        found.add(CoveringTest(name, recorded["tests"][name]["seconds"]))
        return found

    def passed(self) -> set[CoveringTest]:
        """Return all recorded tests that passed."""
        return {
            CoveringTest(name, each["seconds"])
            for part in self.parts()
            for name, each in _read_part(self.folder / f"{part}.json")["tests"].items()
            if each["outcome"] == "passed"
        }

    def known(self) -> set[str]:
        """Return the names of all recorded tests."""
        return {
            name
            for part in self.parts()
            for name in _read_part(self.folder / f"{part}.json")["tests"]
        }


@functools.cache
def _read_part(path: Path) -> dict:
    return json.loads(path.read_text())


@functools.lru_cache(maxsize=64)
def _keys_by_line(path: Path, module: str) -> dict[int, list[str]]:
    data = coverage.CoverageData(basename=str(path))
    data.read()
    return {
        line: [key for key in keys if key] for line, keys in data.contexts_by_lineno(module).items()
    }


@functools.lru_cache(maxsize=256)
def _line_numbers(now: tuple[str, ...], then: tuple[str, ...]) -> dict[int, int]:
    """Return the numbers that lines had, for those that have not changed."""
    matcher = difflib.SequenceMatcher(None, now, then, autojunk=False)
    return {
        block.a + offset + 1: block.b + offset + 1
        for block in matcher.get_matching_blocks()
        for offset in range(block.size)
    }


def cores_of_this_machine() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0))
