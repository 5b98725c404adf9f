from __future__ import annotations

import fcntl
import os
import struct
import termios

import pytest
from plaunch_logs_default.streams.terminal import (
    SIZE_INTERVAL,
    WindowSizeSync,
    copy_size,
    open_terminal,
)


def set_size(fd, rows, columns):
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


@pytest.fixture
def terminal():
    master, slave = os.openpty()
    set_size(slave, 33, 101)
    yield slave
    os.close(master)
    os.close(slave)


@pytest.fixture
def ends(terminal):
    master, slave = open_terminal(terminal)
    yield master, slave
    os.close(master)
    os.close(slave)


def test_the_worker_finds_a_terminal_of_the_same_size(ends):
    assert os.isatty(ends[1])
    assert os.get_terminal_size(ends[1]) == (101, 33)


def test_bytes_arrive_as_they_were_written(terminal, ends):
    assert termios.tcgetattr(terminal)[1] & termios.OPOST
    text = b"one\n\ttwo\r\n\x1b[31mred\x1b[0m \xff\x00 10%\r20%\r"
    os.write(ends[1], text)
    assert os.read(ends[0], 1000) == text


def test_other_settings_are_those_of_the_real_terminal(terminal):
    settings = termios.tcgetattr(terminal)
    settings[0] ^= termios.IXANY
    settings[6][termios.VINTR] = b"\x05"
    termios.tcsetattr(terminal, termios.TCSANOW, settings)
    master, slave = open_terminal(terminal)
    copied = termios.tcgetattr(slave)
    assert copied[0] == settings[0]
    assert copied[6][termios.VINTR] == b"\x05"
    os.close(master)
    os.close(slave)


def test_what_is_not_a_terminal_cannot_be_copied():
    before = len(os.listdir("/proc/self/fd"))
    with open(os.devnull) as null, pytest.raises(OSError, match="ioctl"):
        open_terminal(null.fileno())
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_size_is_checked_when_the_worker_writes_but_not_too_often(terminal, ends):
    now = 100.0
    keeper = WindowSizeSync(terminal, ends[0], clock=lambda: now)
    set_size(terminal, 50, 200)
    keeper.write(b"text")
    assert os.get_terminal_size(ends[1]) == (101, 33)
    now += SIZE_INTERVAL
    keeper.write(b"text")
    assert os.get_terminal_size(ends[1]) == (200, 50)
    set_size(terminal, 60, 210)
    keeper.write(b"text")
    assert os.get_terminal_size(ends[1]) == (200, 50)
    copy_size(terminal, ends[0])
    assert os.get_terminal_size(ends[1]) == (210, 60)


def test_a_closed_real_terminal_is_ignored(ends):
    keeper = WindowSizeSync(-1 & 0x7FFF, ends[0], clock=iter([0.0, 10.0]).__next__)
    keeper.write(b"text")
    assert os.get_terminal_size(ends[1]) == (101, 33)
