"""Recorded environments of schedulers' tasks."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "schedulers/environments"


def recorded(task: str, **changes: str | None) -> dict[str, str]:
    """Return the recorded environment of a task with `changes`; None removes a variable."""
    lines = (FOLDER / f"{task}.env").read_text().splitlines()
    environ = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    return {name: value for name, value in {**environ, **changes}.items() if value is not None}
