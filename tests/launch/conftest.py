"""What tests of launches share."""

from __future__ import annotations

import pytest

from helpers.gates import gate  # noqa: F401 - a fixture


@pytest.fixture
def script(tmp_path):
    """A script that does nothing."""
    path = tmp_path / "train.py"
    path.touch()
    return path
