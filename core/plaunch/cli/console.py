"""The launcher's stderr, to which its messages go."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, TextIO

from plaunch.errors import PluginLoadError
from plaunch.parts import JSON_LINE, JSON_TEMPLATE, PAINT, WRAP, load_part
from plaunch.texts import printable, printable_message
from plaunch.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

FORMATS = ("text", "json")
COLORS = ("auto", "always", "never")

PATIENCE = 0.2  # seconds to wait for a message to be written; a thread continues after that
LAST_PATIENCE = 5.0  # seconds without progress, at the end of the process
_ERASE = "\r\x1b[K"
_WIDTH = 80  # columns of a terminal that does not say how many it has
_LAST_NARROW = "\u10ff"  # the last character before those of two columns
_SLICE = 4096  # bytes of one write, to tell a slow reader from a stalled one


class Stderr:
    """Formats the launcher's messages, and writes them without blocking on a stalled reader.

    stderr is often a pipe into another program, which also reads the workers' output. When that
    program stalls, a launcher that writes in the ordinary way neither forwards a SIGTERM nor exits.

    A thread exists only while there is something to write. A stderr without a descriptor (a
    notebook's, a test runner's) is written to directly. If stderr cannot be written to, messages
    are discarded.

    Args:
        stream: returns the stream; None if stderr was closed from the start.
        start: starts a thread.
    """

    def __init__(
        self,
        stream: Callable[[], TextIO | None] = lambda: sys.stderr,
        start: Callable[..., None] = start_thread,
    ) -> None:
        self.is_json = False
        self._run_id: str | None = None  # of the launch, once it has one
        self._color = "auto"
        self._stream = stream
        self._start = start
        self._changed = threading.Condition()
        self._texts: deque[tuple[int, bytes]] = deque()
        self._thread: threading.Thread | None = None
        self._is_showing = False  # a status line that the next message erases
        self._held = ""  # text to write before the next message
        self._last: list[tuple[str, str]] | None = None  # messages to write after all others

    # --- format -----------------------------------------------------------------------------------

    def set_format(self, log_format: str, color: str) -> None:
        """Set the format of messages from the options, and forget the last launch's run id.

        Args:
            log_format: one of `FORMATS`.
            color: one of `COLORS`.
        """
        self.is_json, self._color, self._run_id = log_format == "json", color, None

    def set_run_id(self, run_id: str) -> None:
        """Set the run id in messages that are JSON."""
        self._run_id = run_id

    def guess_format(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        """Do the same from a command line that cannot be parsed, for the message about it."""
        is_json = "--log-format=json" in argv or ("--log-format", "json") in pairwise(argv)
        self.set_format("json" if is_json else environ.get("PET_LOG_FORMAT", "text"), "auto")

    def format(self, text: str, level: str, created: float | None = None) -> str:
        """Format a message: text, for the width and with the colours of a terminal, or JSON.

        Args:
            text: the message, without a final newline.
            level: the name of its level in `logging`.
            created: its time in seconds since the epoch; None means now.
        """
        text = printable_message(text)
        if self.is_json:
            line: str = load_part(JSON_LINE)(text, level, created, self._run_id)
            return line
        text = f"plaunch: {text}"
        if self._has_colors():
            with contextlib.suppress(PluginLoadError):
                text = load_part(PAINT)(text, level)
        width = self._width()
        if width and any(len(line) > width for line in text.split("\n")):
            with contextlib.suppress(PluginLoadError):
                text = load_part(WRAP)(text, width)
        return text

    def line_template(self, run_id: str) -> str | None:
        """Return the template of the workers' lines, if messages are JSON; see `LaunchConfig`."""
        if not self.is_json:
            return None
        template: str = load_part(JSON_TEMPLATE)(run_id)
        return template

    def _has_colors(self) -> bool:
        """Whether `--color` asks for colours; `auto` follows CPython's rules for tracebacks."""
        if self._color != "auto":
            return self._color == "always"
        environ = os.environ
        if environ.get("NO_COLOR"):
            return False
        return bool(environ.get("FORCE_COLOR")) or (
            environ.get("TERM") != "dumb" and self._is_terminal()
        )

    def _is_terminal(self) -> bool:
        stream = self._stream()
        try:
            return stream is not None and stream.isatty()
        except ValueError:  # it is closed
            return False

    def _width(self) -> int:
        """Return the columns of the terminal; 0 if stderr is none, or its width is unknown."""
        stream = self._stream()
        if stream is None or not self._is_terminal():
            return 0
        try:
            return os.get_terminal_size(stream.fileno()).columns
        except OSError:
            return 0

    # --- a status line ----------------------------------------------------------------------------

    def can_show(self) -> bool:
        """Whether stderr is a terminal that can erase a line."""
        return os.environ.get("TERM", "dumb") != "dumb" and self._is_terminal()

    def show(self, text: str, tail: str = "") -> None:
        """Show a status line at the bottom of the terminal, until the next message or `show`.

        An empty text erases it. If the line is longer than the terminal is wide, `text` is cut, and
        `tail` follows what is left of it.
        """
        if not text:
            if self._is_showing:
                self.write("")
            return
        most = (self._width() or _WIDTH) - 1  # a cursor behind the last column is ambiguous
        line, tail = printable(f"plaunch: {text}"), printable(tail)[: max(most - 1, 0)]
        if _count_columns(line) > most - len(tail):
            while line and _count_columns(line) >= most - len(tail):
                line = line[:-1]
            line += "…"
        self.write(line + tail)
        self._is_showing = True

    def _new_line(self) -> str:
        """Return what begins a new line unless the cursor is at the beginning of one.

        A prompt of a worker, such as that of pdb, may be on the last line. A terminal continues
        on the next line only when a character follows a full line, so as many spaces as it has
        columns leave the cursor on an empty line, which is then erased.
        """
        width = self._width() if self.can_show() and not self.is_json else 0
        return " " * width + _ERASE if width else ""

    # --- write ------------------------------------------------------------------------------------

    def say(self, text: str, level: str = "ERROR") -> None:
        """Format a message and write it."""
        self.write(self.format(text, level) + "\n")

    @contextlib.contextmanager
    def holding(self, text: str, seconds: float) -> Iterator[Callable[[], None]]:
        """Write `text` unless the block succeeds within `seconds`.

        It is written before any other message in the block, or at the end if the block raises or
        takes longer. The yielded function starts a thread that writes it when the time is over.
        """
        self._held = text
        until = time.monotonic() + seconds
        timer = threading.Timer(seconds, self.write, [""])
        timer.name, timer.daemon = "plaunch-hold", True

        def keep_time() -> None:
            if not self._held or timer.ident is not None:
                return
            timer.interval = until - time.monotonic()
            try:
                self._start(timer, blocks_signals=True)
            except RuntimeError:  # no more threads
                self.write("")

        try:
            yield keep_time
            if time.monotonic() < until:
                self._held = ""
        finally:
            timer.cancel()
            if timer.ident is not None:
                timer.join()
            if self._held:
                self.write("")

    @contextlib.contextmanager
    def keeping_last(self, say: Callable[[str, str], None] | None = None) -> Iterator[None]:
        """Keep what `say_last` gets in the block, and call `say` with it at the end."""
        kept: list[tuple[str, str]] = []
        self._last = kept
        try:
            yield
        finally:
            self._last = None
            for text, level in kept:
                (say or self.say)(text, level)

    def say_last(self, text: str, level: str = "INFO") -> None:
        """Write a message below all others, such as the report of a failure."""
        if self._last is None:
            self.say(text, level)
        else:
            self._last.append((text, level))

    def write(self, text: str) -> None:
        """Write `text`; returns when it is written, or after a short time."""
        if self._held:
            with self._changed:
                text, self._held = self._held + text, ""
        if self._is_showing:
            text, self._is_showing = _ERASE + text, False
        elif text:
            text = self._new_line() + text
        stream = self._stream()
        if stream is None:
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
                    self._start(thread, blocks_signals=True)
                except RuntimeError:  # no more threads, or the interpreter is ending
                    self._run()
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


def _count_columns(text: str) -> int:
    """Return the columns of a text, at most: characters of East Asia take two."""
    return len(text) + sum(char > _LAST_NARROW for char in text)


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (AttributeError, OSError, ValueError):
        return None
