"""Fixtures of the tests of streams."""

from __future__ import annotations

import pytest

from helpers.gates import gate as gate
from helpers.recorded_warnings import RecordedWarnings


@pytest.fixture
def log():
    return RecordedWarnings()
