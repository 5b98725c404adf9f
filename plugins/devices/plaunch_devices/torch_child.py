"""Asking torch, in a process of its own: importing it costs seconds and 200 MB."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable

from plaunch.errors import UsageError

ASK_TIMEOUT = 120.0  # seconds; a cold import from a network file system takes more than a minute
_KILL_TIMEOUT = 5.0
_NO_TORCH = 3

# A script in the current directory that is called torch.py is not what is meant.
_PROGRAM = f"""
import sys
if sys.path[:1] == [""]:
    del sys.path[0]
try:
    import torch
except ImportError as error:
    sys.exit(print(error, file=sys.stderr) or {_NO_TORCH})
module = getattr(torch, sys.argv[1], None)
if module is None and sys.argv[1] == "accelerator":
    module = torch.cuda
print(module.device_count() if module is not None and module.is_available() else 0)
"""

AskTorch = Callable[[str], int]


class TorchMissingError(UsageError):
    """torch cannot be imported by the interpreter that the workers use."""


def ask_torch(module: str, *, timeout: float = ASK_TIMEOUT) -> int:
    """How many devices torch sees: `module` is `"cuda"`, `"xpu"` or `"accelerator"`.

    Runs the workers' interpreter (`PYTHON_EXEC`, else this one) once, for at most `timeout` s.

    Raises:
        TorchMissingError: there is no torch to ask.
        UsageError: it did not answer; the message has the last thing that it wrote.
    """
    python = os.environ.get("PYTHON_EXEC") or sys.executable
    asked = f"asked torch.{module} of {python!r} for the number of devices"
    try:
        child = subprocess.Popen(
            [python, "-c", _PROGRAM, module],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        raise UsageError(f"{asked}, which cannot be started: {error}; give a number") from error
    try:
        out, err = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"{asked}, which did not answer within {timeout:g} s; give a number instead"
        ) from None
    finally:
        _end(child)
    said = next((line for line in reversed(err.splitlines()) if line.strip()), "nothing on stderr")
    if child.returncode == _NO_TORCH:
        raise TorchMissingError(
            f"{asked}, which has no torch: {said}; install it, or give a number"
        )
    answer = out.split()[-1:]
    if child.returncode != 0 or not answer or not answer[0].isdecimal():
        raise UsageError(
            f"{asked}, which ended with exit code {child.returncode} and said: {said}; "
            "give a number instead"
        )
    return int(answer[0])


def _end(child: subprocess.Popen[str]) -> None:
    """Make sure that the child is gone, also when a signal interrupted the question."""
    if child.poll() is None:
        child.kill()
        # A process that hangs inside a device driver may outlive SIGKILL; it is not waited for.
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_KILL_TIMEOUT)
    for stream in (child.stdout, child.stderr):
        if stream is not None:
            stream.close()
