"""The variables of the launcher that workers do not inherit: its mark, and secrets."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# Has the process id of plaunch's command line, which sets it (plaunch.cli.entry). All its children
# but the workers inherit the variable.
LAUNCHER_VARIABLE = "PLAUNCH_LAUNCHER"

# Secrets of any plugin: PLAUNCH_RDZV_TOKEN, PLAUNCH_ETCD_PASSWORD.
_PREFIX, _SECRETS = "PLAUNCH_", ("_TOKEN", "_PASSWORD")


def owns_process() -> bool:
    """Whether this process is plaunch's command line."""
    return os.environ.get(LAUNCHER_VARIABLE) == str(os.getpid())


def reported_exit_code(code: int) -> int:
    """The exit code for a command line that ends with `code`; depends on `PLAUNCH_EXIT_CODE`."""
    if os.environ.get("PLAUNCH_EXIT_CODE") == "torchrun" and code not in (0, 2):
        return 1
    return code


def is_started_by_launcher(environ: bytes, launcher: int) -> bool:
    """Whether the command line with pid `launcher` started a process with this environment."""
    return f"{LAUNCHER_VARIABLE}={launcher}".encode() in environ.split(b"\0")


def is_secret(name: str) -> bool:
    """Whether a variable of this name is a secret of the launcher."""
    return name.startswith(_PREFIX) and name.endswith(_SECRETS)


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """A copy of `environ` for a helper process of the launcher, which needs no secrets."""
    return {name: value for name, value in environ.items() if not is_secret(name)}


def inheritable(environ: Mapping[str, str]) -> dict[str, str]:
    """A copy of `environ` for a worker: without secrets, and without the launcher's mark."""
    return {name: v for name, v in without_secrets(environ).items() if name != LAUNCHER_VARIABLE}
