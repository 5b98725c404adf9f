"""Limits on processes and threads, and the error for the one that was reached."""

from __future__ import annotations

import pytest
from plaunch_doctor.limits import describe_shortage, find_process_limits


class System:
    """A host simulated by files."""

    def __init__(self, files=()):
        self.files = dict(files)

    def read(self, path):
        return self.files.get(path, "")

    def list(self, path):
        return sorted(
            {name[len(path) + 1 :].split("/")[0] for name in self.files if name.startswith(path)}
        )


@pytest.fixture
def system():
    files = {
        "/proc/7/status": "Name:\tx\nUid:\t1000\t1000\t1000\t1000\nThreads:\t3",
        "/proc/8/status": "Name:\ty\nUid:\t1000\t1000\t1000\t1000\nThreads:\t2",
        "/proc/9/status": "Name:\tz\nUid:\t1\t1\t1\t1\nThreads:\t50",
        "/proc/self/cgroup": "0::/pod",
        "/sys/fs/cgroup/pod/pids.max": "100",
        "/sys/fs/cgroup/pod/pids.current": "99",
        "/proc/loadavg": "0.12 0.20 0.22 2/345 6789",
        "/proc/sys/kernel/pid_max": "32768",
    }
    return System(files)


def test_limits_of_this_user_and_of_its_control_groups(system):
    assert [str(limit) for limit in find_process_limits(system, 1000, 6)] == [
        "ulimit -u allows 6 processes and threads, 5 exist",
        "pids.max of the control group allows 100 processes and threads, 99 exist",
    ]
    assert [limit.left for limit in find_process_limits(system, 0, 6)] == [
        1
    ]  # does not apply to root


def test_the_limit_that_was_reached_is_named(system):
    assert describe_shortage(system) == (
        "the system gives no more processes or threads: pids.max of the control group allows 100 "
        "processes and threads, 99 exist. Raise the limit (ulimit -u, limits.conf, docker "
        "--pids-limit, the pod's limit), start fewer workers, or end other processes"
    )
    system.files["/sys/fs/cgroup/pod/pids.current"] = "max"
    assert "kernel.pid_max allows 32768 processes and threads, 345 exist" in (
        describe_shortage(system)
    )


def test_a_system_without_readable_limits(monkeypatch):
    monkeypatch.setattr("os.getuid", lambda: 0)
    assert "check the free memory" in describe_shortage(System())
