"""The launcher's own variables, which workers do not inherit: its mark, and secrets."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# The process id of plaunch's command line, which sets it for itself (plaunch.cli.entry). What it
# starts inherits the variable; workers do not get it.
LAUNCHER_VARIABLE = "PLAUNCH_LAUNCHER"

# Whatever plugin reads them: PLAUNCH_RDZV_TOKEN, PLAUNCH_ETCD_PASSWORD.
_PREFIX, _SECRETS = "PLAUNCH_", ("_TOKEN", "_PASSWORD")


def owns_process() -> bool:
    """Whether this process is plaunch's command line."""
    return os.environ.get(LAUNCHER_VARIABLE) == str(os.getpid())


def reported_exit_code(code: int) -> int:
    """The exit code of a command line that ends with `code`, as `PLAUNCH_EXIT_CODE` asks for it."""
    if os.environ.get("PLAUNCH_EXIT_CODE") == "torchrun" and code not in (0, 2):
        return 1
    return code


def is_started_by_launcher(environ: bytes, launcher: int) -> bool:
    """Whether a process with this environment was started by the command line `launcher` itself."""
    return f"{LAUNCHER_VARIABLE}={launcher}".encode() in environ.split(b"\0")


def is_secret(name: str) -> bool:
    """Whether a variable of this name is for the launcher's eyes only."""
    return name.startswith(_PREFIX) and name.endswith(_SECRETS)


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """A copy of `environ` for a process of the launcher's own that needs no secrets."""
    return {name: value for name, value in environ.items() if not is_secret(name)}


def inheritable(environ: Mapping[str, str]) -> dict[str, str]:
    """A copy of `environ` that a worker may see: without secrets, and without the mark."""
    return {name: v for name, v in without_secrets(environ).items() if name != LAUNCHER_VARIABLE}
