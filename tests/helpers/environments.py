"""Environments of schedulers' tasks, as they were recorded."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "schedulers/environments"


def recorded(task: str, **changes: str | None) -> dict[str, str]:
    """What a task has seen, but for `changes`; what becomes None is left out."""
    lines = (FOLDER / f"{task}.env").read_text().splitlines()
    environ = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    return {name: value for name, value in {**environ, **changes}.items() if value is not None}
