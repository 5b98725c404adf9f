"""What holds a process, from real processes and made-up files."""

from __future__ import annotations

import signal

import pytest
from plaunch.process import describe_hold

from helpers.programs import running_python
from helpers.waiting import wait_until


def test_one_that_is_suspended():
    with running_python("-c", "print(flush=True); input()") as process:
        process.stdout.readline()
        assert describe_hold(process.pid) == ""
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: describe_hold(process.pid) == "suspended (SIGSTOP)", "its suspension")
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: describe_hold(process.pid) == "", "its end")
    process.wait()
    assert describe_hold(process.pid) == ""


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_one_that_is_traced_is_so_whatever_its_state_is(tmp_path):
    write(tmp_path / "7" / "status", "Name:\tpython\nState:\tt (tracing stop)\nTracerPid:\t99\n")
    write(tmp_path / "99" / "comm", "gdb\n")
    assert describe_hold(7, str(tmp_path)) == "traced by gdb (pid 99)"


@pytest.mark.parametrize(
    ("groups", "file", "text", "is_frozen"),
    [
        ("0::/job/a\n", "cgroup/job/a/cgroup.events", "populated 1\nfrozen 1\n", True),
        ("0::/job/a\n", "cgroup/job/a/cgroup.events", "populated 1\nfrozen 0\n", False),
        ("0::/job/a\n", "cgroup/job/cgroup.events", "populated 1\nfrozen 1\n", True),
        ("6:freezer:/job\n0::/\n", "cgroup/freezer/job/freezer.state", "FROZEN\n", True),
        ("6:freezer:/job\n0::/\n", "cgroup/freezer/job/freezer.state", "THAWED\n", False),
        ("0::/\n", "cgroup/other", "", False),
    ],
)
def test_one_whose_control_group_is_frozen(tmp_path, groups, file, text, is_frozen):
    proc = tmp_path / "proc"
    write(proc / "7" / "status", "Name:\tpython\nState:\tS (sleeping)\nTracerPid:\t0\n")
    write(proc / "7" / "cgroup", groups)
    write(tmp_path / "sys" / "fs" / file, text)
    expected = "frozen by its control group" if is_frozen else ""
    assert describe_hold(7, str(proc), str(tmp_path)) == expected
