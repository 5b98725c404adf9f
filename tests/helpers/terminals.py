"""Commands that run in a terminal, and what it shows."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import subprocess
import sys
import termios
from pathlib import Path

from helpers.waiting import BOUND

sys.path.insert(0, str(Path(__file__).parents[2] / "tools/docs"))
try:
    import screens
finally:
    del sys.path[0]

# Python can make a terminal the controlling one only in the new session itself.
_TAKE = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
_TAKE += "os.execv(sys.argv[1], sys.argv[1:])"


def set_columns(fd, columns):
    """Set the width of a terminal."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))


def lines_on_screen(text, columns):
    """Return the lines that a terminal shows after this output, without spaces at their ends."""
    screen = screens.Screen(columns)
    screen.write(text.replace("\r\n", "\n"))
    return [line.rstrip(" ") for line in screen.lines()]


class Terminal:
    """A pseudo-terminal with a Python program as its foreground job; options are those of Popen."""

    def __init__(self, *words, columns=0, **options):
        self.shown = b""
        self.master, slave = os.openpty()
        set_columns(slave, columns)
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE, sys.executable, *words],
            start_new_session=True,
            **{"stdin": slave, "stdout": slave, "stderr": slave, **options},
        )
        os.close(slave)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            # Clean up after a failed test: workers have their own sessions, and the launcher must
            # pass SIGTERM on.
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(BOUND)
            self.process.kill()
            self.process.wait()
        self.close()

    def type(self, keys):
        os.write(self.master, keys)

    def read_until(self, text):
        """Read output until it contains the text."""
        while text not in self.shown:
            self.shown += os.read(self.master, 65536)

    def read_to_end(self):
        """Read until all processes have closed the terminal; return all output as lines."""
        with contextlib.suppress(OSError):
            while data := os.read(self.master, 65536):
                self.shown += data
        return self.shown.decode().split("\r\n")

    def close(self):
        """Close the window."""
        if self.master >= 0:
            os.close(self.master)
        self.master = -1
