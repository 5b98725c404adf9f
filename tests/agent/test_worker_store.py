"""Opening the store of a round, and starting what it needs."""

from __future__ import annotations

import os
import sys

import pytest
from plaunch.agent.worker_store import HostedStore
from plaunch.process.stopping.job import Reaper

STREAMS = {"stdin": 0, "stdout": 1, "stderr": 2}


class Starter:
    """A starter of workers that starts no helper, and what it was asked to start."""

    def __init__(self):
        self.asked = []

    def start_helper(self, command, **options):
        self.asked.append((command, options.keys() - {"env"}))


@pytest.fixture
def reaper():
    reaper = Reaper()
    reaper.begin()
    yield reaper
    reaper.close()


@pytest.mark.parametrize(
    ("options", "is_asked"),
    [
        (STREAMS, True),
        ({**STREAMS, "pass_fds": ()}, True),
        ({**STREAMS, "stdout": None}, False),  # it cannot inherit the starter's
        ({**STREAMS, "cwd": "/"}, False),  # an option that starters do not have
    ],
)
def test_the_starter_of_workers_starts_helpers_whose_options_it_knows(reaper, options, is_asked):
    command = [sys.executable, "-c", "pass"]
    starter = Starter()
    store = HostedStore(None, reaper, starter)
    assert store._start(command, os.environ, **options).wait(60) == 0
    assert starter.asked == ([(command, options.keys())] if is_asked else [])
    assert HostedStore(None, reaper)._start(command, os.environ, **options).wait(60) == 0
