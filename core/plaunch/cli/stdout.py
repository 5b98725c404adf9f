"""stdout, which belongs to what was asked for: a plan, a list, the workers' output.

A plugin that prints would spoil it for the program that reads it. So what other code prints in
the launcher goes to stderr.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING, TextIO

from plaunch.errors import PlaunchError
from plaunch.process.launcher_variables import owns_process

if TYPE_CHECKING:
    from collections.abc import Iterator

_STDOUT, _STDERR = 1, 2


class Stdout:
    """Where plaunch's own output goes, and once it is reserved, nothing else."""

    def __init__(self) -> None:
        self._first: TextIO | None = None  # what `sys.stdout` was
        self._own: TextIO | None = None
        self._calls = 0  # how many want it to be theirs alone, in another program's process
        self._lock = threading.Lock()

    @property
    def stream(self) -> TextIO:
        """The stream itself."""
        return sys.stdout if self._own is None else self._own

    def write(self, text: str) -> None:
        """Write `text` at once; a reader that has gone is not an error.

        Raises:
            PlaunchError: stdout takes no text, for example on a full disk.
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
        """Write out what is buffered, as far as it can be: it comes before what stderr says next.

        A plugin that prints to a stderr which takes nothing keeps the lock of that stream for good;
        so the stream is left alone if it is that one.
        """
        stream = sys.stdout if self._own is None else self._own
        if stream is not None and stream is not sys.stderr:
            with contextlib.suppress(OSError, ValueError):  # nobody is left to read it
                stream.flush()

    @contextlib.contextmanager
    def reserved(self, *, is_launch: bool) -> Iterator[None]:
        """What is printed from now on goes to stderr, unless it is written with `write`.

        In the process of the command line that stays so to the end, and what C code and programs
        write goes to stderr as well. Another program's process gets its stdout back, at the end of
        the last of several calls at once; while something is launched in it, its own prints are
        left as they are.

        Args:
            is_launch: whether there will be workers, for which see `hand_over`.
        """
        stream, is_ours = sys.stdout, owns_process()
        if stream is None or sys.stderr is None or not (is_ours or not is_launch):
            yield
            return
        if is_ours:
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
        """Let the descriptor be stdout again, for workers to inherit."""
        if self._own is not None and self._own is not self._first:
            os.dup2(self._own.fileno(), _STDOUT)

    def _give_back(self) -> None:
        """In a program's own process, and in workers that are forked."""
        if self._first is not None:
            sys.stdout = self._first
        self._first = self._own = None


STDOUT = Stdout()  # a process has one


def _copy(stream: TextIO) -> TextIO:
    """The same file under another number, while the old one becomes stderr's."""
    stream.flush()
    fd = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    return open(fd, "w", encoding=stream.encoding, errors=stream.errors)
