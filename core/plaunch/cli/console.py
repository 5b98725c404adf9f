"""The launcher's stdout and stderr: requested output on one, messages on the other."""

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

from plaunch.errors import PlaunchError, PluginLoadError
from plaunch.parts import JSON_LINE, JSON_TEMPLATE, PAINT, load_part
from plaunch.process.marks import owns_process
from plaunch.texts import printable, printable_message
from plaunch.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

FORMATS = ("text", "json")
COLORS = ("auto", "always", "never")

PATIENCE = 0.2  # seconds to wait for a message to be written; a thread continues after that
LAST_PATIENCE = 5.0  # seconds without progress, at the end of the process
_ERASE = "\r\x1b[K"
_SLICE = 4096  # bytes of one write, to tell a slow reader from a stalled one
_STDOUT, _STDERR = 1, 2


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
        """Format a message: text, with colours on a terminal, or one line of JSON.

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

    # --- a status line ----------------------------------------------------------------------------

    def can_show(self) -> bool:
        """Whether stderr is a terminal that can erase a line."""
        return os.environ.get("TERM", "dumb") != "dumb" and self._is_terminal()

    def show(self, text: str) -> None:
        """Show a status line at the bottom of the terminal, until the next message or `show`.

        An empty text erases it.
        """
        if not text:
            if self._is_showing:
                self.write("")
            return
        stream = self._stream()
        fd = None if stream is None else _descriptor(stream)
        try:
            width = 80 if fd is None else os.get_terminal_size(fd).columns
        except OSError:
            width = 80
        line = printable(f"plaunch: {text}")
        if len(line) >= width > 1:
            line = line[: width - 2] + "…"
        self.write(_ERASE + line)
        self._is_showing = True

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

    def write(self, text: str) -> None:
        """Write `text`; returns when it is written, or after a short time."""
        if self._held:
            with self._changed:
                text, self._held = self._held + text, ""
        if self._is_showing:
            text, self._is_showing = _ERASE + text, False
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


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (AttributeError, OSError, ValueError):
        return None


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
