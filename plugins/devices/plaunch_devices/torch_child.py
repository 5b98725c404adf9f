"""Queries to torch in a child process, because importing it takes seconds and 200 MB."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from plaunch.errors import UsageError

from plaunch_devices.kernel import Accelerator

if TYPE_CHECKING:
    from collections.abc import Mapping

ASK_TIMEOUT = 120.0  # seconds; a cold import from a network file system takes more than a minute
_KILL_TIMEOUT = 5.0
_NO_TORCH = 3

# Do not import a script torch.py in the current directory.
_BEGIN = f"""
import sys
if sys.path[:1] == [""]:
    del sys.path[0]
try:
    import torch
except ImportError as error:
    sys.exit(print(error, file=sys.stderr) or {_NO_TORCH})
"""

_COUNT = """
module = getattr(torch, sys.argv[1], None)
if module is None and sys.argv[1] == "accelerator":
    module = torch.cuda
print(module.device_count() if module is not None and module.is_available() else 0)
"""

# torch registers a private-use backend when it loads the entry points `torch.backends`. Without
# any, torch is not imported, because a misspelt word should not take seconds.
_FIND_BACKENDS = """
import sys
from importlib.metadata import entry_points
if not entry_points(group="torch.backends"):
    sys.exit(print("unknown"))
"""

_COUNT_PRIVATE_USE = """
name = torch._C._get_privateuse1_backend_name()
module = getattr(torch, name, None)
if sys.argv[1] != name:
    print("unknown")
else:
    print(module.device_count() if module is not None and module.is_available() else 0)
"""

_LOCATE = """
kind = "cuda"
if hasattr(torch, "accelerator") and torch.accelerator.is_available():
    kind = torch.accelerator.current_accelerator().type
module = getattr(torch, kind, None)
found = []
for index in range(module.device_count() if module is not None and module.is_available() else 0):
    shown = module.get_device_properties(index)
    numbers = [getattr(shown, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    known = all(isinstance(number, int) for number in numbers)
    found.append("{:04x}:{:02x}:{:02x}.0".format(*numbers) if known else "unknown")
print(",".join(found) or "none")
"""

AskTorch = Callable[[str], int]


class TorchMissingError(UsageError):
    """torch cannot be imported by the interpreter of the workers."""


def ask_torch(module: str, *, timeout: float = ASK_TIMEOUT) -> int:
    """Count the devices that torch sees: `module` is `"cuda"`, `"xpu"` or `"accelerator"`.

    Runs the workers' interpreter (`PYTHON_EXEC`, else this one) for at most `timeout` seconds.

    Raises:
        TorchMissingError: torch is not installed.
        UsageError: torch did not answer; the message has the last line of its output.
    """
    question = f"torch.{module}", "for the number of devices"
    return int(_ask(_BEGIN + _COUNT, module, question, "give a number", r"\d+", timeout))


def count_private_use(name: str, *, timeout: float = ASK_TIMEOUT) -> int | None:
    """Count the devices of torch's private-use backend `name`.

    Return None if there is no such backend, or if torch is not installed. Runs the workers'
    interpreter as `ask_torch` does, and imports torch only if a distribution registers a backend.

    Raises:
        UsageError: torch did not answer.
    """
    if not name.isidentifier():
        return None
    question = "torch", f"for the private-use backend {name!r}"
    try:
        answer = _ask(
            _FIND_BACKENDS + _BEGIN + _COUNT_PRIVATE_USE,
            name,
            question,
            "give a number",
            r"\d+|unknown",
            timeout,
        )
    except TorchMissingError:
        return None
    return None if answer == "unknown" else int(answer)


def locate_with_torch(
    *, environ: Mapping[str, str] | None = None, timeout: float = ASK_TIMEOUT
) -> list[Accelerator]:
    """List the devices that torch sees, in its order, with their PCI addresses if known.

    Runs the workers' interpreter as `ask_torch` does, in the environment `environ`, which has the
    lists of visible devices; None for that of this process.

    Raises:
        TorchMissingError: torch is not installed.
        UsageError: torch did not answer.
    """
    question = "torch", "where the devices are"
    pattern = r"none|(unknown|[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.0)(,(unknown|[0-9a-f:.]+))*"
    answer = _ask(
        _BEGIN + _LOCATE, "", question, "leave out --numa-binding", pattern, timeout, environ
    )
    addresses = [] if answer == "none" else answer.split(",")
    return [
        Accelerator("", index, "" if address == "unknown" else address)
        for index, address in enumerate(addresses)
    ]


def _ask(
    program: str,
    word: str,
    question: tuple[str, str],
    instead: str,
    pattern: str,
    timeout: float,
    environ: Mapping[str, str] | None = None,
) -> str:
    """Run a program and return the last word that it prints, which must match `pattern`."""
    python = os.environ.get("PYTHON_EXEC") or sys.executable
    asked = f"asked {question[0]} of {python!r} {question[1]}"
    try:
        child = subprocess.Popen(
            [python, "-c", program, word],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            env=environ,
        )
    except OSError as error:
        raise UsageError(f"{asked}, which cannot be started: {error}; {instead}") from error
    try:
        out, err = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"{asked}, which did not answer within {timeout:g} s; {instead} instead"
        ) from None
    finally:
        _end(child)
    last = next((line for line in reversed(err.splitlines()) if line.strip()), "nothing on stderr")
    if child.returncode == _NO_TORCH:
        raise TorchMissingError(f"{asked}, which has no torch: {last}; install it, or {instead}")
    answer = (out.split() or [""])[-1]
    if child.returncode != 0 or not re.fullmatch(pattern, answer):
        raise UsageError(
            f"{asked}, which ended with exit code {child.returncode} and said: {last}; "
            f"{instead} instead"
        )
    return answer


def _end(child: subprocess.Popen[str]) -> None:
    """Make sure that the child has ended, also after an interruption by a signal."""
    if child.poll() is None:
        child.kill()
        # A process that hangs inside a device driver may outlive SIGKILL.
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_KILL_TIMEOUT)
    for stream in (child.stdout, child.stderr):
        if stream is not None:
            stream.close()
