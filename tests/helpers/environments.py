"""Environments of schedulers' tasks, as they were recorded."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "schedulers/environments"


def recorded(name: str, **changes: str | None) -> dict[str, str]:
    """What the task of that name has seen, but for `changes`; what becomes None is left out."""
    lines = (FOLDER / f"{name}.env").read_text().splitlines()
    environ = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    environ.update(changes)
    return {variable: value for variable, value in environ.items() if value is not None}
