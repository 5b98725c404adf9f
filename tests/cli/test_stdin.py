"""A script from stdin: `plaunch -`."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from types import SimpleNamespace

import pytest
from plaunch.cli import parse, read_script, reads_stdin
from plaunch.errors import UsageError

from helpers.waiting import BOUND, wait_until

SCRIPT = b"print(1)\n"
LOG = logging.getLogger("plaunch")


@pytest.fixture
def pipe():
    ends = SimpleNamespace(read=-1, write=-1)
    ends.read, ends.write = os.pipe()
    yield ends
    for fd in (ends.read, ends.write):
        with contextlib.suppress(OSError):
            os.close(fd)


def read(fd, **options):
    return read_script(parse(["-", "argument"]), LOG, fd, **options)


@pytest.mark.parametrize(
    ("argv", "reads"),
    [
        (["-"], True),
        (["--nproc-per-node=2", "--", "-", "-"], True),
        (["train.py", "-"], False),
        (["-m", "-"], False),
        (["--no-python", "-"], False),
        (["--run-path", "-"], False),
        ([], False),
    ],
)
def test_which_command_lines_read_it(argv, reads):
    assert reads_stdin(parse(argv)) == reads
    if not reads:
        assert read_script(parse(argv), LOG, -1) is None


def test_a_pipe_is_read_to_its_end(pipe):
    os.set_blocking(pipe.read, False)  # by a program that shares it
    data = b"# " + b"x" * 300_000 + b"\n" + SCRIPT

    def write():
        with open(pipe.write, "wb", 0) as file:
            for begin in range(0, len(data), 10_000):
                file.write(data[begin : begin + 10_000])

    writer = threading.Thread(target=write)
    writer.start()
    assert read(pipe.read) == data
    writer.join(BOUND)


def test_it_says_what_it_waits_for_once(pipe, caplog):
    caplog.set_level(logging.INFO, "plaunch")
    found = []
    reader = threading.Thread(target=lambda: found.append(read(pipe.read, silence=0.01)))
    reader.start()
    wait_until(lambda: caplog.messages, "a message")
    os.write(pipe.write, SCRIPT)
    os.close(pipe.write)
    reader.join(BOUND)
    assert found == [SCRIPT]
    assert caplog.messages == ["waiting for the script on stdin (Ctrl-C ends the wait)"]


def test_a_script_may_be_typed(caplog):
    caplog.set_level(logging.INFO, "plaunch")
    master, slave = os.openpty()
    found = []
    reader = threading.Thread(target=lambda: found.append(read(slave)))
    reader.start()
    wait_until(lambda: caplog.messages, "a message")
    os.write(master, SCRIPT + b"\x04")
    reader.join(BOUND)
    os.close(master)
    os.close(slave)
    assert found == [SCRIPT]
    [message] = caplog.messages
    assert "Ctrl-D on an empty line ends it" in message


@pytest.mark.parametrize("data", [b"", b" \n\t\n"])
def test_an_empty_script_is_refused(pipe, data):
    """Otherwise a forgotten redirection would look like a success."""
    os.write(pipe.write, data)
    os.close(pipe.write)
    with pytest.raises(UsageError, match=r"'-'\), which is empty"):
        read(pipe.read)


def test_what_cannot_be_read_is_refused(tmp_path):
    folder = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(UsageError, match=r"cannot be read: Is a directory"):
        read(folder)
    os.close(folder)


def test_a_stream_without_an_end_is_refused():
    with open("/dev/zero", "rb") as file, pytest.raises(UsageError, match="longer than 64 MiB"):
        read(file.fileno())
