"""Real command lines, run as a user runs them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TIMEOUT = 60.0  # seconds; a hang is a failure, however slow the machine


class CommandLine:
    """Runs `python -m plaunch` in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PET_", "PLAUNCH_", "TORCHELASTIC_", "TORCH_ELASTIC_"))
            and name not in ("LOGLEVEL", "OMP_NUM_THREADS", "PYTHON_EXEC")
        }

    def write(self, name: str, text: str) -> str:
        """Write a script into the folder and return its path."""
        path = self.folder / name
        path.write_text(text)
        return str(path)

    @contextlib.contextmanager
    def start(self, *argv: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
        """Start a launch, its streams being pipes; it is ended if the block is left early."""
        process = subprocess.Popen(
            [sys.executable, "-m", "plaunch", *argv],
            cwd=self.folder,
            env={**self.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                yield process
            except BaseException:
                process.terminate()
                raise

    def run(self, *argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a launch to its end."""
        with self.start(*argv, **environ) as process:
            out, err = process.communicate(timeout=TIMEOUT)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture
def plaunch(tmp_path: Path) -> CommandLine:
    """Run launches in a temporary folder."""
    return CommandLine(tmp_path)
