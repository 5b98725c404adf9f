"""The interpreter of the store host: that of the workers."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from plaunch.process import is_python

if TYPE_CHECKING:
    from collections.abc import Mapping

# Variables for the workers only, which change how torch, devices or the interpreter behave.
_DROPPED = ("TORCH", "PYTORCH_", "NCCL_", "GLOO_", "CUDA_", "OMP_", "MKL_", "KMP_", "PLAUNCH_")
_OF_RANKS = ("RANK", "WORLD_SIZE")
# Of Python's variables, only those about the module search path are kept.
_PYTHON = "PYTHON"
_PYTHON_KEPT = frozenset(
    ("PYTHONHOME", "PYTHONNOUSERSITE", "PYTHONPATH", "PYTHONPYCACHEPREFIX", "PYTHONUSERBASE")
)
_SET = {
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    # Disconnected clients are not worth a message.
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}


@dataclass(frozen=True)
class Interpreter:
    """The interpreter of the store host and of the workers.

    Args:
        python: the program.
        env: the environment of a worker.
        folders: the module search path; empty for the interpreter's own.
    """

    python: str
    env: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()

    def environment(self) -> dict[str, str]:
        """Return the environment of the host."""
        env = {
            name: value
            for name, value in self.env.items()
            if not name.startswith(_DROPPED)
            and not name.endswith(_OF_RANKS)
            and (not name.startswith(_PYTHON) or name in _PYTHON_KEPT)
        }
        return {**env, **_SET}


def find_interpreter(entrypoint: object, environ: Mapping[str, str]) -> Interpreter:
    """Return the interpreter that runs `entrypoint`; if unknown, the one that runs scripts."""
    if isinstance(entrypoint, str):
        if is_python(entrypoint):
            return Interpreter(entrypoint, environ)
        return Interpreter(os.environ.get("PYTHON_EXEC") or sys.executable, environ)
    from multiprocessing import spawn  # loaded already where functions run

    executable = spawn.get_executable()
    python = os.fsdecode(executable) if executable else sys.executable
    # Processes of multiprocessing search modules where this process does.
    return Interpreter(python, environ, tuple(filter(None, sys.path)))
