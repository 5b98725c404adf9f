"""What holds for the whole suite."""

from __future__ import annotations

import fcntl
import os
import signal

import pytest


def pytest_configure():
    """Take Ctrl-C, which processes of xdist ignore, and with them whatever they start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers():
    """Half as many tests again as there are processors: most of them wait for something."""
    return max(2, len(os.sched_getaffinity(0)) * 3 // 2)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    """One heavy test at a time, and none of them is timed while it waits for its turn.

    Trainings that share two cores with other trainings take longer than anybody waits.
    """
    if item.get_closest_marker("heavy") is None:
        return (yield)
    base = item.config._tmp_path_factory.getbasetemp()
    # Each of the processes that run tests has a folder of its own in that of the whole run.
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (shared / "heavy").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return (yield)
