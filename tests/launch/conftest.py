"""What tests of launches share."""

from __future__ import annotations

import pytest


@pytest.fixture
def script(tmp_path):
    """A script that does nothing."""
    path = tmp_path / "train.py"
    path.touch()
    return path
