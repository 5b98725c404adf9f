"""Limits on processes and threads, and the error for the one that was reached."""

from __future__ import annotations

import pytest
from plaunch.doctor import DoctorContext
from plaunch_doctor.limits import describe_shortage, find_process_limits


def write(root, path, text):
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


@pytest.fixture
def system(tmp_path):
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
    for path, text in files.items():
        write(tmp_path, path, text)
    return DoctorContext(root=str(tmp_path))


def test_limits_of_this_user_and_of_its_control_groups(system):
    assert [str(limit) for limit in find_process_limits(system, 1000, 6)] == [
        "ulimit -u allows 6 processes and threads, 5 exist",
        "pids.max of the control group allows 100 processes and threads, 99 exist",
    ]
    assert [limit.left for limit in find_process_limits(system, 0, 6)] == [
        1
    ]  # does not apply to root


def test_the_limit_that_was_reached_is_named(system, tmp_path):
    assert describe_shortage(system) == (
        "the system gives no more processes or threads: pids.max of the control group allows 100 "
        "processes and threads, 99 exist. Raise the limit (ulimit -u, limits.conf, docker "
        "--pids-limit, the pod's limit), start fewer workers, or end other processes"
    )
    write(tmp_path, "/sys/fs/cgroup/pod/pids.current", "max")
    assert "kernel.pid_max allows 32768 processes and threads, 345 exist" in (
        describe_shortage(system)
    )


def test_a_system_without_readable_limits(monkeypatch, tmp_path):
    monkeypatch.setattr("os.getuid", lambda: 0)
    assert "check the free memory" in describe_shortage(DoctorContext(root=str(tmp_path)))
