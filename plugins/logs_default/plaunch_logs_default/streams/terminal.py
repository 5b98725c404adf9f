"""Pseudo-terminals, for workers whose stderr is a terminal; imported if there are any."""

from __future__ import annotations

import fcntl
import os
import termios
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from plaunch_logs_default.streams.sinks import ByteSink

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE_INTERVAL = 1.0  # seconds between two checks of the window size


def open_terminal(like_fd: int) -> tuple[int, int]:
    r"""Open a pseudo-terminal with the settings of the terminal `like_fd`; (master, slave).

    It has the same size and settings, except that the bytes which the worker writes arrive
    unchanged at the master: the real terminal converts `\n` to `\r\n`.

    Raises:
        OSError: no pseudo-terminal is available.
    """
    master, slave = os.openpty()
    try:
        iflag, oflag, _, lflag, _, _, characters = termios.tcgetattr(like_fd)
        # Keep its own speed and parity: it rejects those of a serial line.
        _, _, cflag, _, ispeed, ospeed, _ = termios.tcgetattr(slave)
        oflag &= ~termios.OPOST
        # An echo of the input would come back as the worker's output.
        lflag &= ~(termios.ECHO | termios.ECHONL)
        settings = [iflag, oflag, cflag, lflag, ispeed, ospeed, characters]
        termios.tcsetattr(slave, termios.TCSANOW, settings)
        copy_size(like_fd, master)
    except (OSError, termios.error) as error:
        os.close(master)
        os.close(slave)
        raise OSError(*error.args) from error
    return master, slave


def copy_size(from_fd: int, to_fd: int) -> None:
    """Set the window size of the terminal `to_fd` to that of `from_fd`."""
    size = fcntl.ioctl(from_fd, termios.TIOCGWINSZ, bytes(8))
    if size != fcntl.ioctl(to_fd, termios.TIOCGWINSZ, bytes(8)):
        fcntl.ioctl(to_fd, termios.TIOCSWINSZ, size)


class WindowSizeSync(ByteSink):
    """Copies the window size of the real terminal to a pseudo-terminal.

    Checked when the worker writes, at most once per `SIZE_INTERVAL`, so that a program that fits
    its output to the window has the current size for its next line.
    """

    def __init__(
        self, like_fd: int, master: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._like_fd = like_fd
        self._master = master
        self._clock = clock
        self._checked_at = clock()

    def write(self, data: bytes) -> None:
        """Copy the window size if the last check was `SIZE_INTERVAL` ago."""
        del data
        now = self._clock()
        if now - self._checked_at >= SIZE_INTERVAL:
            self._checked_at = now
            with suppress(OSError):  # the real terminal may be gone; its console reports that
                copy_size(self._like_fd, self._master)
