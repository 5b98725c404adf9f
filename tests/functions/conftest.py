"""What all tests of function workers share."""

from __future__ import annotations

import multiprocessing.forkserver

import pytest


@pytest.fixture(params=["spawn", "fork", "forkserver"])
def start_method(request):
    return request.param


@pytest.fixture(scope="module", autouse=True)
def _no_fork_server_left():
    yield
    multiprocessing.forkserver._forkserver._stop()
