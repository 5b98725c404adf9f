"""The programs of Slurm."""

from __future__ import annotations

import shutil
import socket
import subprocess
from typing import TYPE_CHECKING

from plaunch.errors import UsageError

if TYPE_CHECKING:
    from plaunch.engines import EngineRequest

_ASK_TIMEOUT = 10.0  # seconds for Slurm to answer


def require(program: str) -> None:
    """Check that a program of Slurm is installed.

    Raises:
        UsageError: it is not.
    """
    if shutil.which(program) is None:
        raise UsageError(
            f"--on=slurm needs {program}, which is not in PATH on {socket.gethostname()}; run the "
            "command on a host that submits jobs to Slurm"
        )


def ask_slurm(*command: str) -> str:
    """Return what a program of Slurm prints; nothing if it fails."""
    try:
        asked = subprocess.run(
            command,
            capture_output=True,
            timeout=_ASK_TIMEOUT,
            check=False,
            encoding="utf-8",
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return ""
    return asked.stdout.strip() if asked.returncode == 0 else ""


def excluding(request: EngineRequest) -> list[str]:
    """Return the option of salloc and sbatch for the hosts that are not used."""
    return [f"--exclude={','.join(request.exclude)}"] if request.exclude else []
