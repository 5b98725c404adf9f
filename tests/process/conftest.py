"""What all tests of processes share."""

from __future__ import annotations

import multiprocessing.forkserver

import pytest


@pytest.fixture(scope="module", autouse=True)
def _no_fork_server_left():
    yield
    multiprocessing.forkserver._forkserver._stop()
