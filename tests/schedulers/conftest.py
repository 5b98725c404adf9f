"""Environments of schedulers, recorded and made up."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "environments"


@pytest.fixture(scope="session")
def recorded():
    """Reads a recorded environment: what the task of that name has seen."""

    def read(name: str, **changes: str | None) -> dict[str, str]:
        lines = (FOLDER / f"{name}.env").read_text().splitlines()
        environ = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
        for variable, value in changes.items():
            environ.pop(variable, None)
            if value is not None:
                environ[variable] = value
        return environ

    return read
