"""Fixtures of the tests of function workers."""

from __future__ import annotations

import importlib
import os
import signal

import pytest
from plaunch.process import start_processes


@pytest.fixture(params=["spawn", "fork", "forkserver"])
def start_method(request):
    return request.param


@pytest.fixture
def functions(monkeypatch):
    """The module of worker functions, on a path that new processes have too."""
    monkeypatch.syspath_prepend(os.path.join(os.path.dirname(__file__), "modules"))
    return importlib.import_module("worker_functions")


@pytest.fixture
def start():
    """Start a function once for each tuple of arguments; with fork by default, as it is fast."""
    opened = []

    def start(function, *args, envs=None, **options):
        options = {"start_method": "fork", "handle_signals": False, **options}
        by_rank = dict(enumerate(args or [()]))
        opened.append(start_processes("trainer", function, by_rank, envs, **options))
        return opened[-1]

    yield start
    for context in opened:
        context.close(signal.SIGKILL)
