"""The launcher's variables that workers do not inherit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.process.reaping.marker import LAUNCHER_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

TOKEN_VARIABLE = "PLAUNCH_RDZV_TOKEN"  # noqa: S105 - the name, not the secret of the job's nodes

# The launcher's own is for what the launcher starts for itself.
WITHHELD = frozenset({LAUNCHER_VARIABLE, TOKEN_VARIABLE})


def without_withheld(environ: Mapping[str, str]) -> dict[str, str]:
    """A copy of `environ` that a worker may see."""
    return {name: value for name, value in environ.items() if name not in WITHHELD}
