"""The modules that `--preload=torch` imports, compared with those that a training imports."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools/docs"))
try:
    import training_imports
finally:
    del sys.path[0]


def test_the_list_is_that_of_the_fork_server():
    from plaunch_preload.server.training_modules import TRAINING_MODULES

    assert TRAINING_MODULES == {"torch": training_imports.read_listed()}


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_a_training_imports_nothing_else():
    pytest.importorskip("torch")
    assert training_imports.find_missing() == []
