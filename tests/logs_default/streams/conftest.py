"""What the tests of streams share."""

from __future__ import annotations

import pytest

from helpers.gates import gate as gate
from helpers.notices import Recorded


@pytest.fixture
def notices():
    return Recorded()
