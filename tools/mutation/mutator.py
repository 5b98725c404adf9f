"""Runs the tests of one change after the other."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from project import SIMULATION
from sandbox import CPU_LIMIT, OUTPUT, WALL_LIMIT

if TYPE_CHECKING:
    from coverage_map import CoveringTest
    from mutations import Mutation
    from project import Project

HERE = Path(__file__).parent
MARKERS = "not slow and not heavy and not exhaustive and not gpu"
CPU_SECONDS = 60.0  # for the tests of one change
# Seconds that chosen tests took, while they were recorded.
NEAR_SECONDS = 20.0
OTHER_SECONDS = 20.0
REST_SECONDS = 30.0
FAR = 2
LEAST_SECONDS = 30.0  # for a test that runs without a change
WALL_SECONDS = 300.0
SIMULATION_CPU_SECONDS = 60.0


@dataclass
class Result:
    """What became of a change.

    Args:
        outcome: killed, survived or untested (no test executes the line).
        by: the test that failed, or what else showed the change.
        tests: how many tests were chosen.
        seconds: how long it took.
    """

    outcome: str
    by: str = ""
    tests: int = 0
    seconds: float = 0.0


@dataclass
class TestChoice:
    """Tests for one change, in the order in which they run.

    Args:
        seconds: how long each took, by name.
        files: the modules that have them.
        has_new: whether tests of these modules run that have not been recorded.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    has_new: bool = True

    @classmethod
    def of(cls, tests: list[CoveringTest], limit: float, near: list[str]) -> TestChoice:
        """Choose the first tests that together take no longer than `limit` seconds."""
        choice = cls(files=list(near))
        total = 0.0
        for test in tests:
            if total + test.seconds > limit:
                continue
            total += test.seconds
            choice.seconds[test.nodeid] = test.seconds
            if test.path not in choice.files:
                choice.files.append(test.path)
        return choice


class Mutator:
    """Runs the tests of changes."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._map = project.map
        self._known = self._map.known()
        self._trusted_path = project.folder / "trusted.json"
        self._lock = threading.Lock()  # threads read the map and the trusted tests
        self._trusted: dict[str, bool] = {}  # whether a test passes unchanged
        if self._trusted_path.exists():
            self._trusted = json.loads(self._trusted_path.read_text())

    def run(self, mutation: Mutation, output: Path) -> Result:
        """Run tests and simulated jobs with one change."""
        began = time.monotonic()
        source = (self._project.tree / mutation.module).read_text()
        changed = output.with_suffix(".py")
        changed.write_text(mutation.apply(source))
        files = {mutation.module: changed}
        result = self.run_tests(mutation, output, files)
        if result.outcome != "killed" and self.is_simulated(mutation):
            sandbox = self._project.sandbox(output)
            code = sandbox.run(
                self._project.simulation,
                cpu=SIMULATION_CPU_SECONDS,
                wall=WALL_SECONDS,
                log=output / "simulation.log",
                files=files,
            )
            if code:
                result.outcome, result.by = "killed", f"simulation (exit code {code})"
        result.seconds = round(time.monotonic() - began, 1)
        return result

    def is_simulated(self, mutation: Mutation) -> bool:
        """Return whether simulated jobs execute the line."""
        with self._lock:
            tests = self._map.covering(mutation.module, mutation.covered)
        return any(test.nodeid == SIMULATION for test in tests)

    def run_tests(self, mutation: Mutation, output: Path, files: dict[str, Path]) -> Result:
        """Run tests, the nearest first, then all others, until one fails that is trusted."""
        result = Result("survived")
        while True:
            choices = self.choose(mutation)
            result.tests = sum(len(each.seconds) for each in choices[:-1])  # of the line
            for choice in choices:
                if not choice.files:
                    continue
                code, failed = self.run_choice(choice, output, files)
                if code in (0, 5):
                    continue
                if code in (CPU_LIMIT, WALL_LIMIT) and not failed:
                    return Result("survived", "the tests did not end", result.tests)
                if code == 1 and not failed:
                    raise RuntimeError((output / "tests.log").read_text())
                if self.is_trusted(failed, output):
                    result.outcome, result.by = "killed", failed or f"exit code {code}"
                    return result
                break  # choose again, without the test that fails anyway
            else:
                result.outcome = "survived" if result.tests else "untested"
                return result

    def choose(self, mutation: Mutation) -> list[TestChoice]:
        """Return the tests of the line in its room, those of other rooms, and the rest of its room.

        The latter, because a process that is killed leaves no record, nor does what runs at import.
        """
        with self._lock:
            covering = self._map.covering(mutation.module, mutation.covered)
            tests = {test for test in covering | self._map.passed() if self.is_usable(test)}
        covering &= tests
        near_file = self.test_path(mutation.module)
        room = os.path.dirname(near_file)
        near = [test for test in tests if os.path.dirname(test.path) == room]
        near.sort(key=lambda test: (distance(test.path, near_file), test.seconds, test.nodeid))
        files = [
            f"{room}/{path.name}"
            for path in sorted((self._project.tree / room).glob("test_*.py"))
            if distance(path.name, near_file) < FAR
        ]
        chosen: set[str] = set()
        choices = []
        for found, limit, new in (
            ([test for test in near if test in covering], NEAR_SECONDS, files),
            (take_turns(list(covering)), OTHER_SECONDS, []),
            (near, REST_SECONDS, []),
        ):
            choice = TestChoice.of(
                [each for each in found if each.nodeid not in chosen], limit, new
            )
            chosen.update(choice.seconds)
            choices.append(choice)
        return choices

    def is_usable(self, test: CoveringTest) -> bool:
        """Return whether a test passes without a change, and still exists."""
        return (
            test.nodeid != SIMULATION
            and self._trusted.get(test.nodeid, True)
            and (self._project.tree / test.path).exists()
        )

    def test_path(self, module: str) -> str:
        """Return the path of the tests of a module, if there are some."""
        inside = Path(module).relative_to(self._project.source)
        return str(Path("tests") / inside.parent / f"test_{inside.name}")

    def untrusted(self) -> set[str]:
        """Return the tests that fail without a change."""
        return {test for test, is_trusted in self._trusted.items() if not is_trusted}

    def run_choice(
        self, choice: TestChoice, output: Path, files: dict[str, Path]
    ) -> tuple[int, str]:
        """Run chosen tests; return pytest's exit code, and the test that failed."""
        output.mkdir(parents=True, exist_ok=True)
        (output / "failed").unlink(missing_ok=True)
        known = [
            name
            for name in self._known.union(self.untrusted())
            if name.partition("::")[0] in choice.files
        ]
        plan = {"seconds": choice.seconds, "known": known if choice.has_new else None}
        (output / "plan.json").write_text(json.dumps(plan))
        environment = [f"MUTATION_CHOSEN={OUTPUT}/plan.json"]
        words = ["-x", "-q", "-n0", "-p", "chosen", "-p", "no:cacheprovider", "--tb=short"]
        pytest = [sys.executable, str(HERE / "run_tests.py"), *words, "-m", MARKERS]
        code = self._project.sandbox(output).run(
            ["env", *environment, *pytest, *choice.files],
            cpu=CPU_SECONDS,
            wall=WALL_SECONDS,
            log=output / "tests.log",
            files=files,
        )
        failed = output / "failed"
        return code, failed.read_text() if failed.exists() else ""

    def is_trusted(self, test: str, output: Path) -> bool:
        """Return whether a test, or the import of a module, succeeds without the change."""
        if not test:
            return True  # pytest itself has ended
        if test not in self._trusted:
            seconds = {test: LEAST_SECONDS} if "::" in test else {}
            alone = TestChoice(seconds, [test.partition("::")[0]], has_new=False)
            code, _ = self.run_choice(alone, output.with_name(f"{output.name}-checked"), {})
            with self._lock:
                self._trusted[test] = code in (0, 5)
                self._trusted_path.write_text(json.dumps(self._trusted, indent=0))
        return self._trusted[test]


def distance(path: str, near_file: str) -> int:
    """Return how far a module of tests is from that with the same name as the changed module."""
    name, near = Path(path).stem, Path(near_file).stem
    return 0 if name == near else 1 if near.startswith(name) or name.startswith(near) else FAR


def take_turns(tests: list[CoveringTest]) -> list[CoveringTest]:
    """Return the fastest tests of each module, then the next fastest, and so on."""
    by_file: dict[str, list[CoveringTest]] = {}
    for test in sorted(tests, key=lambda test: (test.seconds, test.nodeid)):
        by_file.setdefault(test.path, []).append(test)
    turns = [
        (turn // 3, test.seconds, test.nodeid, test)
        for group in by_file.values()
        for turn, test in enumerate(group)
    ]
    return [turn[-1] for turn in sorted(turns, key=lambda turn: turn[:-1])]
