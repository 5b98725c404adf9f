"""The launcher's stdout, to which only requested output goes."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING, TextIO

from plaunch.errors import PlaunchError
from plaunch.process.marks import owns_process

if TYPE_CHECKING:
    from collections.abc import Iterator

_STDOUT, _STDERR = 1, 2


class Stdout:
    """Keeps stdout for the requested output: a plan, a list, the workers' output.

    Anything else that code prints in the launcher, such as a plugin, goes to stderr: it would
    corrupt the output for the program that reads it.
    """

    def __init__(self) -> None:
        self._first: TextIO | None = None  # the original `sys.stdout`
        self._own: TextIO | None = None
        self._calls = 0  # reservations at once, in another program's process
        self._lock = threading.Lock()

    @property
    def stream(self) -> TextIO:
        """The stream itself."""
        return sys.stdout if self._own is None else self._own

    def write(self, text: str) -> None:
        """Write `text` and flush; a closed pipe is not an error.

        Raises:
            PlaunchError: stdout cannot be written, for example on a full disk.
        """
        try:
            self.stream.write(text)
            self.stream.flush()
        except BrokenPipeError:
            pass
        except OSError as error:
            why = error.strerror or str(error)
            raise PlaunchError(
                f"stdout, where this output was to go, cannot be written: {why}; the output is "
                "incomplete"
            ) from error

    def flush(self) -> None:
        """Flush, so that buffered output comes before the next message on stderr.

        Does nothing if the stream is stderr: a plugin that prints to a blocked stderr keeps the
        lock of that stream permanently.
        """
        stream: TextIO | None = self.stream
        if stream is not None and stream is not sys.stderr:
            with contextlib.suppress(OSError, ValueError):  # the reader is gone
                stream.flush()

    @contextlib.contextmanager
    def reserved(self, *, is_launch: bool) -> Iterator[None]:
        """Redirect everything that is not written with `write` to stderr.

        In the process of the command line this is permanent, and includes the output of C code and
        programs. Another program's process gets its stdout back at the end, or at the end of the
        last of several simultaneous calls; during a launch its prints are not redirected.

        Args:
            is_launch: whether workers will start; see `hand_over`.
        """
        stream, is_own_process = sys.stdout, owns_process()
        if stream is None or sys.stderr is None or (is_launch and not is_own_process):
            yield
            return
        if is_own_process:
            self._first, self._own = stream, _copy(stream)
            sys.stdout = sys.stderr
            os.register_at_fork(after_in_child=self._give_back)
            yield
            return
        with self._lock:
            self._calls += 1
            if self._calls == 1:
                self._first = self._own = stream
                sys.stdout = sys.stderr
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1
                if self._calls == 0:
                    self._give_back()

    def hand_over(self) -> None:
        """Restore the descriptor of stdout, for workers to inherit."""
        if self._own is not None and self._own is not self._first:
            os.dup2(self._own.fileno(), _STDOUT)

    def _give_back(self) -> None:
        """Restore `sys.stdout`, in another program's process and in forked workers."""
        if self._first is not None:
            sys.stdout = self._first
        self._first = self._own = None


STDOUT = Stdout()  # one per process


def _copy(stream: TextIO) -> TextIO:
    """Duplicate stdout under another descriptor, and make the old one a copy of stderr."""
    stream.flush()
    fd = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    return open(fd, "w", encoding=stream.encoding, errors=stream.errors)
