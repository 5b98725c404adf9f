"""The launcher's variables that workers do not inherit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.process.stopping.reaping.job_tag import LAUNCHER_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

# Whatever plugin reads them: PLAUNCH_RDZV_TOKEN, PLAUNCH_ETCD_PASSWORD.
_PREFIX, _SECRETS = "PLAUNCH_", ("_TOKEN", "_PASSWORD")


def is_secret(name: str) -> bool:
    """Whether a variable of this name is for the launcher's eyes only."""
    return name.startswith(_PREFIX) and name.endswith(_SECRETS)


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """A copy of `environ` for a process of the launcher's own that needs no secrets."""
    return {name: value for name, value in environ.items() if not is_secret(name)}


def without_withheld(environ: Mapping[str, str]) -> dict[str, str]:
    """A copy of `environ` that a worker may see; the launcher's mark is for its own processes."""
    return {name: v for name, v in without_secrets(environ).items() if name != LAUNCHER_VARIABLE}
