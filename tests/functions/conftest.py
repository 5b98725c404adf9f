"""What all tests of function workers share."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["spawn", "fork", "forkserver"])
def start_method(request):
    return request.param
