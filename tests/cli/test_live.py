"""The line at the bottom of a terminal: replaced, cut to its width, gone before other words."""

from __future__ import annotations

import fcntl
import os
import struct
import termios

import pytest
from plaunch.cli.stderr import Stderr

ERASE = "\r\x1b[K"


@pytest.fixture
def terminal(monkeypatch):
    """A terminal of 40 columns as this process's stderr; what it reads is what was written."""
    ours, theirs = os.openpty()
    attributes = termios.tcgetattr(theirs)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(theirs, termios.TCSANOW, attributes)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 25, 40, 0, 0))
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(theirs, "w") as stream:

        def attach():
            # In the test itself: pytest puts its own stream back after the set-up.
            monkeypatch.setattr("sys.stderr", stream)

            def read():
                """What was written, up to an end of ours."""
                stream.write("END")
                stream.flush()
                seen = ""
                while not seen.endswith("END"):
                    seen += os.read(ours, 4096).decode()
                return seen.removesuffix("END")

            return read

        yield attach
    os.close(ours)


@pytest.mark.parametrize(
    ("shown", "written", "seen"),
    [
        (["one", "two"], "", f"{ERASE}plaunch: one{ERASE}{ERASE}plaunch: two"),
        (["one"], "plaunch: more\n", f"{ERASE}plaunch: one{ERASE}plaunch: more\nplaunch: more\n"),
        (["one", "", ""], "", f"{ERASE}plaunch: one{ERASE}"),
    ],
    ids=["the next line", "a message, once", "an empty line, once"],
)
def test_a_line_is_taken_away(terminal, shown, written, seen):
    read = terminal()
    stderr = Stderr()
    for text in shown:
        stderr.show(text)
    if written:
        stderr.write(written)
        stderr.write(written)
    stderr.finish()
    assert read() == seen


def test_it_never_wraps(terminal):
    read = terminal()
    stderr = Stderr()
    stderr.show("x" * 100)
    stderr.finish()
    shown = read().removeprefix(ERASE)
    assert len(shown) == 39
    assert shown.endswith("x…")


def test_a_terminal_that_cannot_replace_lines_gets_none(terminal, monkeypatch):
    terminal()
    assert Stderr().can_show()
    monkeypatch.setenv("TERM", "dumb")
    assert not Stderr().can_show()
    monkeypatch.delenv("TERM")
    assert not Stderr().can_show()


def test_neither_does_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    with (tmp_path / "err").open("w") as stream:
        monkeypatch.setattr("sys.stderr", stream)
        assert not Stderr().can_show()
    monkeypatch.setattr("sys.stderr", None)
    assert not Stderr().can_show()
