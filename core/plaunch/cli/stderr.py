"""Writes the launcher's messages to stderr without blocking on a stalled reader.

stderr is often a pipe into another program, which also reads the workers' output. When that program
stalls, a launcher that writes in the ordinary way neither forwards a SIGTERM nor exits.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, TextIO

from plaunch.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE = 0.2  # seconds to wait for a message to be written; a thread continues after that
LAST_PATIENCE = 5.0  # seconds without progress, at the end of the process
_ERASE = "\r\x1b[K"
_SLICE = 4096  # bytes of one write, to tell a slow reader from a stalled one


class Stderr:
    """Writes messages to this process's stderr in the order given.

    A thread exists only while there is something to write. A stderr without a descriptor (a
    notebook's, a test runner's) is written to directly. If stderr cannot be written to, messages
    are discarded.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._texts: deque[tuple[int, bytes]] = deque()
        self._thread: threading.Thread | None = None
        self._is_showing = False  # a status line that the next message erases
        self._held = ""  # text to write before the next message

    def can_show(self) -> bool:
        """Whether stderr is a terminal that can erase a line."""
        stream = sys.stderr
        is_terminal = stream is not None and stream.isatty()
        return is_terminal and os.environ.get("TERM", "dumb") != "dumb"

    def show(self, text: str) -> None:
        """Show a status line at the bottom of the terminal, until the next message or `show`.

        An empty text erases it.
        """
        if not text:
            if self._is_showing:
                self.write("")
            return
        try:
            width = os.get_terminal_size(sys.stderr.fileno()).columns
        except (AttributeError, OSError, ValueError):
            width = 80
        line = f"plaunch: {text}"
        if len(line) >= width > 1:
            line = line[: width - 2] + "…"
        self.write(_ERASE + line)
        self._is_showing = True

    @contextlib.contextmanager
    def holding(self, text: str, seconds: float) -> Iterator[Callable[[], None]]:
        """Write `text` unless the block succeeds within `seconds`.

        It is written before any other message in the block, or at the end if the block raises or
        takes longer. The yielded function starts a thread that writes it when the time is over.
        """
        self._held = text
        until = time.monotonic() + seconds
        is_over = threading.Event()

        def wait() -> None:
            if not is_over.wait(until - time.monotonic()):
                self.write("")

        thread = threading.Thread(target=wait, name="plaunch-hold", daemon=True)

        def keep_time() -> None:
            try:
                if self._held and thread.ident is None:
                    start_thread(thread, blocks_signals=True)
            except RuntimeError:  # no more threads
                self.write("")

        try:
            yield keep_time
            if time.monotonic() < until:
                self._held = ""
        finally:
            is_over.set()
            if thread.ident is not None:
                thread.join()
            if self._held:
                self.write("")

    def write(self, text: str) -> None:
        """Write `text`; returns when it is written, or after a short time."""
        if self._held:
            with self._changed:
                text, self._held = self._held + text, ""
        if self._is_showing:
            text, self._is_showing = _ERASE + text, False
        stream = sys.stderr
        if stream is None:  # closed from the start
            return
        fd = _descriptor(stream)
        if fd is None:
            with contextlib.suppress(ValueError):  # it is closed
                stream.write(text)
                stream.flush()
            return
        data = text.encode(stream.encoding or "utf-8", "backslashreplace")
        with self._changed:
            was_silent = self._thread is None
            self._texts.append((fd, data))
            # In a forked child the thread no longer exists.
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._run, name="plaunch-stderr", daemon=True)
                try:
                    start_thread(thread, blocks_signals=True)
                except RuntimeError:  # no more threads, or the interpreter is ending
                    self._write_here()
                    return
                self._thread = thread
            if was_silent:
                self._changed.wait_for(lambda: self._thread is None, PATIENCE)

    def finish(self, patience: float = LAST_PATIENCE) -> bool:
        """Wait until all is written; give up after `patience` seconds without progress."""
        with self._changed:
            while self._thread is not None:
                if not self._changed.wait(patience):
                    return False
        return True

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._texts:
                    self._thread = None
                    self._changed.notify_all()
                    return
                fd, data = self._texts.popleft()
            with contextlib.suppress(OSError):  # the reader is gone
                self._write(fd, data)

    def _write_here(self) -> None:
        while self._texts:
            with contextlib.suppress(OSError):
                self._write(*self._texts.popleft())

    def _write(self, fd: int, data: bytes) -> None:
        while data:
            try:
                written = os.write(fd, data[:_SLICE])
            except BlockingIOError:
                # A process that shares the descriptor made it non-blocking.
                poller = select.poll()
                poller.register(fd, select.POLLOUT)
                poller.poll()
                continue
            data = data[written:]
            with self._changed:
                self._changed.notify_all()  # there is progress


STDERR = Stderr()  # one per process


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (AttributeError, OSError, ValueError):
        return None
