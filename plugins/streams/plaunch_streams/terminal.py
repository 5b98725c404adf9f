"""A pseudo-terminal in the launcher's place, for a worker's stderr that shows on a terminal."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from plaunch_streams.sinks import Sink

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE_INTERVAL = 1.0  # seconds


def open_terminal(like_fd: int) -> tuple[int, int]:
    r"""Open a pseudo-terminal that looks like the terminal `like_fd`; return (master, slave).

    The worker finds the same size and the same settings, but the bytes that it writes arrive at
    the master as they are: the real terminal is the one that turns `\n` into `\r\n`.

    Raises:
        OSError: the system has no pseudo-terminal to give.
    """
    import termios  # noqa: PLC0415 - only when there is a terminal

    master, slave = os.openpty()
    try:
        iflag, oflag, _, lflag, _, _, characters = termios.tcgetattr(like_fd)
        # Speed and parity stay its own: those of a serial line would be refused.
        _, _, cflag, _, ispeed, ospeed, _ = termios.tcgetattr(slave)
        oflag &= ~termios.OPOST
        # Nobody types here; an echo would come back as the worker's output.
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
    """Give the terminal `to_fd` the window size of `from_fd`."""
    import fcntl  # noqa: PLC0415 - only when there is a terminal
    import termios  # noqa: PLC0415

    size = fcntl.ioctl(from_fd, termios.TIOCGWINSZ, bytes(8))
    if size != fcntl.ioctl(to_fd, termios.TIOCGWINSZ, bytes(8)):
        fcntl.ioctl(to_fd, termios.TIOCSWINSZ, size)


class SizeKeeper(Sink):
    """Keeps the window size of a pseudo-terminal that of the real one.

    The size is looked at when the worker writes, at most once per `SIZE_INTERVAL`: a program that
    fits its output to the window has then the current size for its next line.
    """

    def __init__(
        self, like_fd: int, master: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._like_fd = like_fd
        self._master = master
        self._clock = clock
        self._looked = clock()

    def write(self, data: bytes) -> None:
        """Take note that the worker has written."""
        del data
        now = self._clock()
        if now - self._looked >= SIZE_INTERVAL:
            self._looked = now
            # The real terminal may be gone; its console reports that.
            with suppress(OSError):
                copy_size(self._like_fd, self._master)
