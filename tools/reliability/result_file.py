"""The result files of runs, docs/results/*.json, from which docs/reliability.md is made.

A tool creates a `Run` when it starts, and writes it when it ends:

    run = Run("simulate")
    ...
    run.write("docs/results/simulate.json", {"jobs": 10_000}, ["two worlds train: seed 17"])

This module does not import plaunch: the simulator must do that first.
docs/contributing.md documents the fields.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"


class Run:
    """One run of a tool, from its creation on.

    Args:
        tool: its name, without `tools/`.
        command: what was typed; by default, what started this process.
    """

    def __init__(self, tool: str, command: str | None = None) -> None:
        self._tool = tool
        self._command = command or shlex.join([f"tools/{tool}", *sys.argv[1:]])
        self._date = datetime.datetime.now(datetime.timezone.utc)
        self._began = time.monotonic()

    def write(
        self, path: str | Path, figures: Mapping[str, Any], found: Iterable[str] = ()
    ) -> None:
        """Write the result file.

        Args:
            path: the file. Its findings, and how they were fixed, are kept.
            figures: a number or text for each name, or a row of them, by column.
            found: a line for each new finding.
        """
        path = Path(path)
        findings = list(Result.read(path).findings) if path.exists() else []
        known = {finding["what"] for finding in findings}
        findings += [{"what": what, "fix": ""} for what in found if what not in known]
        content = {
            "tool": self._tool,
            "command": self._command,
            "date": f"{self._date:%Y-%m-%d %H:%M} UTC",
            "commit": find_commit(),
            "machine": describe_machine(),
            "python": platform.python_version(),
            "torch": find_torch(),
            "durations": {
                "seconds": round(time.monotonic() - self._began, 1),
                "CPU seconds": round(sum(os.times()[:4]), 1),
            },
            "figures": dict(figures),
            "findings": findings,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=2) + "\n")


@dataclass(frozen=True)
class Result:
    """What a result file says.

    Args:
        tool: the name of the tool.
        command: what was typed.
        date: the start.
        commit: the commit of plaunch.
        machine: its cores, memory and kernel.
        python: the version.
        durations: seconds, by what took them.
        figures: a number or text for each name, or a row of them, by column.
        findings: each with `what` was found and its `fix`, which is empty while there is none.
        torch: the version, or `none`.
    """

    tool: str
    command: str
    date: str
    commit: str
    machine: str
    python: str
    durations: Mapping[str, float]
    figures: Mapping[str, Any]
    findings: tuple[Mapping[str, str], ...]
    torch: str = "none"

    @classmethod
    def read(cls, path: Path) -> Result:
        """Read a file; a `TypeError` names a field that is missing or unknown."""
        content = json.loads(path.read_text())
        return cls(**{**content, "findings": tuple(content.get("findings", ()))})


def describe_machine() -> str:
    """Return the cores, the memory and the kernel of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return (
        f"{len(os.sched_getaffinity(0))} cores ({platform.machine()}), {memory:.1f} GiB, "
        f"{platform.system()} {platform.release()}"
    )


def find_torch() -> str:
    """Return the version of torch, or `none`."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return "none"


def find_commit() -> str:
    """Return the commit of this checkout, and whether anything but documentation is changed."""
    git = ("git", "-C", str(ROOT))
    try:
        commit = _printed(*git, "rev-parse", "--short=12", "HEAD")
        changes = _printed(*git, "status", "--porcelain", "--", ".", ":!docs")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit} with changes" if changes else commit


def _printed(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def read_results(folder: Path = RESULTS) -> list[Result]:
    """Read all result files, sorted by their names."""
    return [Result.read(path) for path in sorted(folder.glob("*.json"))]
