"""What holds for the whole suite."""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import signal
import sys
import tempfile
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

from helpers import machine_parts
from helpers.processes import forks_beside_threads

# Nothing is said about how fast a shared machine is.
settings.register_profile(
    "plaunch", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("plaunch")


def pytest_configure(config):
    """Let the suite run the same whatever the caller's shell has set.

    Programs that tests start inherit how Python buffers, and which signals are ignored: Ctrl-C
    by processes of xdist and in the background of a script, SIGQUIT there too, SIGHUP by nohup.
    The sockets of its launches are in a folder of their own, so that no user's plaunchctl shows
    them. Its path is short, as those of sockets must be.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="pt", dir="/tmp")
        config.add_cleanup(folder.cleanup)
        os.environ["XDG_RUNTIME_DIR"] = folder.name
        os.environ.pop("PLAUNCH_RUNTIME_DIR", None)
    os.environ.pop("PYTHONUNBUFFERED", None)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for signum in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(signum, signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Let no garbage collection look at the ten thousand collected tests.

    A full collection takes half a second of CPU time with them. Tests and launches in this process
    collect, and look at all objects, hundreds of times. While they are collected, nearly nothing is
    garbage.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Skip, or fail, what needs a part of the machine that is missing."""
    for marker in item.iter_markers("needs"):
        machine_parts.need(*marker.args)


def pytest_terminal_summary(terminalreporter):
    """List the parts of the machine that were missing, once each, with the number of tests.

    The list is also written to the file that PYTEST_NOT_TESTED names.
    """
    reasons = [
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", ())
        if isinstance(report.longrepr, tuple)
    ]
    counts = Counter(text for text in reasons if text.startswith(machine_parts.PREFIX))
    lines = [f"{text} ({count} tests)" for text, count in sorted(counts.items())]
    if lines:
        terminalreporter.section("not tested on this machine")
        terminalreporter.write("".join(f"{line}\n" for line in lines))
    if path := os.environ.get("PYTEST_NOT_TESTED"):
        with open(path, "w") as file:
            file.writelines(f"{line}\n" for line in lines)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Run heavy tests first, and so in the same process.

    Otherwise they are among the last ones, in several processes that wait for each other.
    """
    items.sort(key=lambda item: item.get_closest_marker("heavy") is None)
    if "PYTEST_XDIST_WORKER" in os.environ and sys.version_info >= (3, 15):
        # From 3.15 on, Python warns of a fork also beside the thread with which xdist receives.
        for item in items:
            item.add_marker(forks_beside_threads)


def pytest_xdist_auto_num_workers():
    """Two tests at once for each processor: most of them wait for something."""
    return max(2, len(os.sched_getaffinity(0)) * 2)


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


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)


@pytest.fixture(autouse=True)
def _what_signals_do_is_put_back():
    """A test that lets Ctrl-C be ignored would fail others, which are not interrupted then."""
    before = [signal.getsignal(signum) for signum in _SIGNALS]
    yield
    after = [signal.getsignal(signum) for signum in _SIGNALS]
    for signum, handler in zip(_SIGNALS, before, strict=True):
        signal.signal(signum, handler)
    assert after == before


@pytest.fixture(autouse=True)
def _niceness_stays():
    """A launcher raises its priority; then tests that need the usual one would be skipped."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    yield
    after = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, before)
    assert after == before


@pytest.fixture(autouse=True)
def _logging_is_put_back():
    """A launch in this process sets up the launcher's log, and others look at what is logged."""
    logger = logging.getLogger("plaunch")
    before = logger.level, logger.propagate, list(logger.handlers)
    yield
    logger.setLevel(before[0])
    logger.propagate, logger.handlers = before[1], before[2]


@pytest.fixture(scope="module", autouse=True)
def _no_fork_server_is_left():
    yield
    if "multiprocessing.forkserver" in sys.modules:
        sys.modules["multiprocessing.forkserver"]._forkserver._stop()
