"""What is changed, what tests it, and where results are kept."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coverage_map import CoverageMap
from mutations import Mutation, find_mutations
from sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SOURCE = "core/plaunch"
FIRST_PARTS = ("simulation", "agent", "process", "launch", "plugin", "cli", "basics")
LAST_PARTS = ("e2e",)
SIMULATION = "simulation"  # the part that is no folder of tests
SEEDS = 200
LEFT_OUT = (".git", "build", "__pycache__", ".hypothesis", ".*_cache", ".venv", ".ci-venv")


@dataclass(frozen=True)
class Project:
    """What is changed, and what tests it.

    Args:
        root: the checkout.
        tree: a copy of it, which stays as it is while the checkout is edited.
        source: the package whose lines change, relative to it.
    """

    root: Path
    tree: Path
    source: str = SOURCE

    @classmethod
    @contextlib.contextmanager
    def copied(cls, root: Path, source: str) -> Iterator[Project]:
        """Copy a checkout for as long as a command runs."""
        folder = root / "build" / "mutation"
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix="tree-") as temporary:
            tree = Path(temporary, "tree")
            shutil.copytree(root, tree, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
            yield cls(root, tree, source)

    def sandbox(self, output: Path) -> Sandbox:
        """Return where commands run that write to a folder."""
        return Sandbox(self.root, self.tree, output)

    @property
    def simulation(self) -> list[str]:
        """The command that runs simulated jobs, if there is one."""
        has_one = (self.tree / "tools/simulate").exists()
        return ["tools/simulate", f"--seeds={SEEDS}", "--cores=1"] if has_one else []

    @property
    def equivalents(self) -> Path:
        """The file that lists changes after which the program does the same."""
        return self.root / "tools/mutation/equivalents.json"

    @property
    def folder(self) -> Path:
        """Where maps and results of runs are kept."""
        return self.root / "build" / "mutation"

    @property
    def map(self) -> CoverageMap:
        """Which tests execute which lines."""
        return CoverageMap(self.folder / "map", self.root, self.tree, self.source)

    def modules(self) -> list[str]:
        """Return the paths of all modules, relative to the checkout."""
        return sorted(
            str(path.relative_to(self.tree)) for path in (self.tree / self.source).rglob("*.py")
        )

    def mutations(self, prefix: str = "") -> list[Mutation]:
        """Return all changes of the modules whose path in the package starts with `prefix`."""
        return [
            mutation
            for module in self.modules()
            if module.startswith(os.path.join(self.source, prefix))
            for mutation in find_mutations(module, (self.tree / module).read_text())
        ]

    def parts(self) -> dict[str, list[str]]:
        """Return what is recorded: folders of tests with their paths, and the simulation."""
        tests = self.tree / "tests"
        parts = {
            path.name: [f"tests/{path.name}"]
            for path in sorted(tests.iterdir())
            if path.is_dir() and any(path.rglob("test_*.py"))
        }
        modules = {Path(module).stem for module in self.modules()}
        basics = [
            f"tests/{path.name}"
            for path in sorted(tests.glob("test_*.py"))
            if path.stem.removeprefix("test_") in modules
        ]
        if basics:  # the others read the sources, and execute none of them
            parts["basics"] = basics
        if self.simulation:
            parts[SIMULATION] = self.simulation
        rank = dict.fromkeys(FIRST_PARTS, -1) | dict.fromkeys(LAST_PARTS, 1)
        return dict(sorted(parts.items(), key=lambda part: rank.get(part[0], 0)))

    def listed(self) -> dict[tuple[str, ...], str]:
        """Return the changes after which the program does the same, each with the reason."""
        if not self.equivalents.exists():
            return {}
        entries = json.loads(self.equivalents.read_text())
        return {
            (each["module"], each["where"], each["line"], each["mutation"]): each["why"]
            for each in entries
        }
