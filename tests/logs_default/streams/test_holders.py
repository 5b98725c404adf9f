"""Reports of processes that have a worker's stream open after its end."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from plaunch_logs_default.streams.holders import report_holders

from helpers.waiting import wait_until

FOREVER = 60.0  # seconds


@pytest.fixture
def hold():
    """Start a process that inherits some descriptors."""
    processes = []

    def hold(*fds, new_session=False):
        processes.append(
            subprocess.Popen(
                ["cat", "-u"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=fds,
                start_new_session=new_session,
            )
        )
        # The kernel closes descriptors in `exec` before it sets the command line.
        command = Path(f"/proc/{processes[-1].pid}/cmdline")
        wait_until(command.read_bytes, "a command line")
        return processes[-1].pid

    yield hold
    for process in processes:
        process.stdin.close()
        process.wait(FOREVER)


@pytest.fixture
def open_pipe():
    ends = []

    def open_pipe(make=os.pipe):
        ends.extend(make())
        return ends[-2:]

    yield open_pipe
    for fd in ends:
        os.close(fd)


@pytest.mark.parametrize(
    ("new_session", "origin"),
    [
        (False, "which a plugin of the launcher has started"),
        (True, "which a worker or a plugin has left behind"),
    ],
)
@pytest.mark.parametrize("make", [os.pipe, os.openpty])
def test_one_message_per_process_lists_its_streams(open_pipe, hold, log, make, new_session, origin):
    pipes = [open_pipe(make) for _ in range(4)]
    pid = hold(*(write_end for _, write_end in pipes), new_session=new_session)
    labels = [f"stderr of local rank {rank}" for rank in range(4)]
    streams = {read_end: label for (read_end, _), label in zip(pipes, labels, strict=True)}
    report_holders(streams, log)
    held = "stderr of local rank 0 and stderr of local rank 1 and 2 more"
    lost = f"still has {held} open; what it writes there from now on is lost"
    # This process has the write ends as well. Messages are in the order of process ids, and a new
    # process may have the lower one.
    assert sorted(log.messages) == [
        f"process {pid} (cat -u), {origin}, {lost}",
        f"the launcher itself (pid {os.getpid()}), in which a plugin has copied the descriptor, "
        f"{lost}",
    ]


def test_a_process_with_a_read_end_only_is_not_reported(open_pipe, hold, log):
    read_end, write_end = open_pipe()
    hold(read_end)
    pid = hold(write_end)
    report_holders({read_end: "stdout of local rank 0"}, log)
    assert len(log.messages) == 2
    assert sum(f"process {pid} " in message for message in log.messages) == 1


def test_a_closed_stream_is_not_reported(log):
    read_end, write_end = os.pipe()
    os.close(write_end)
    report_holders({read_end: "stdout of local rank 0"}, log)
    os.close(read_end)
    assert log.messages == []


def test_processes_that_cannot_be_inspected(open_pipe, log, tmp_path):
    read_end, _ = open_pipe()
    report_holders({read_end: "stdout of local rank 0"}, log, proc=str(tmp_path))
    assert log.messages == [
        "a process that the launcher may not inspect still has stdout of local rank 0 open; what "
        "it writes there from now on is lost"
    ]
