"""Reading log files that grow and are rotated."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from plaunch_control.client import ClientError
from plaunch_control.logs import WorkerLog, show_logs
from plaunch_logs_default.rotating_file import RotatingFile


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "stdout.log")


def append(path, data):
    with open(path, "ab") as file:
        file.write(data)


def test_lines_are_returned_when_complete(path):
    log = WorkerLog(0, path)
    assert [*log.lines(is_last=False)] == []  # it is not there yet
    append(path, b"one\nt")
    assert [*log.lines(is_last=False)] == [b"one"]
    append(path, b"wo\n\nthr")
    assert [*log.lines(is_last=False)] == [b"two", b""]
    assert [*log.lines(is_last=True)] == [b"thr"]


@pytest.mark.parametrize("looks", [(), (3,), (5, 17), range(20)])
def test_no_line_is_missed_or_repeated_by_rotations(path, looks):
    """At any time of a read, also if several files were created since the last one."""
    file = RotatingFile(path, 30, 5)
    log, found, lines = WorkerLog(0, path), [], [b"line %02d" % number for number in range(20)]
    for number, line in enumerate(lines):
        file.write(line + b"\n")
        if number in looks:
            found += log.lines(is_last=False)
    file.close()
    found += log.lines(is_last=True)
    kept = {os.path.basename(name) for name in os.listdir(os.path.dirname(path))}
    assert "stdout.log.5" in kept
    if looks:
        assert found == lines
    else:
        assert found == lines[-len(found) :]  # the oldest files are gone
        assert len(found) == 17


def test_the_current_file_may_be_missing_during_a_rotation(path):
    append(path, b"old\n")
    log = WorkerLog(0, path)
    assert [*log.lines(is_last=False)] == [b"old"]
    append(path, b"er\n")
    os.rename(path, f"{path}.1")
    assert [*log.lines(is_last=False)] == [b"er"]
    append(path, b"new\n")
    assert [*log.lines(is_last=True)] == [b"new"]


def test_missing_files_are_named(path, capfd):
    received = {"files": [{"global_rank": 0, "stdout": path, "stderr": None}]}
    options = SimpleNamespace(rank=None, grep=None, follow=False)
    with pytest.raises(ClientError, match=r"stdout\.log: no such file"):
        show_logs(None, received, options)
    append(f"{path}.1", b"\xff old\n")
    append(path, b"new")
    assert show_logs(None, received, options) == 0
    assert capfd.readouterr().out.endswith(" old\nnew\n")


def test_a_pipe_does_not_block(path):
    os.mkfifo(path)
    with pytest.raises(OSError, match="is not a regular file"):
        [*WorkerLog(0, path).lines(is_last=True)]
