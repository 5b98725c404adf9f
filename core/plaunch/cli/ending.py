"""Ends the command line's process, even if a thread or an exit function hangs.

The interpreter waits without a limit for threads that are not daemons, and for exit functions. Here
both get a short time; then a message names them and the process exits.
"""

from __future__ import annotations

import atexit
import contextlib
import enum
import os
import sys
import threading
from typing import TYPE_CHECKING

from plaunch.cli.form import FORM
from plaunch.cli.stderr import STDERR

if TYPE_CHECKING:
    from types import FrameType

PATIENCE = 1.5  # seconds for threads and exit functions together
_LAST_PATIENCE = 0.3  # seconds for the remaining steps after that


def settle(code: int) -> None:
    """Wait for threads and exit functions; exit the process with `code` if that takes too long.

    Returns within two seconds, or not at all. The caller then calls `entry.end_at_once`.
    """
    _Ending(code).wait()


class _EndStep(enum.Enum):
    THREADS = 0
    FUNCTIONS = 1
    STREAMS = 2


class _Ending:
    """Runs the interpreter's exit steps while a thread watches the time."""

    def __init__(self, code: int) -> None:
        self._code = code
        self._step = _EndStep.THREADS
        self._is_over = threading.Event()
        self._guard = threading.Thread(target=self._watch, name="plaunch-end", daemon=True)

    def wait(self) -> None:
        """Run all steps; if they take too long, the watching thread exits the process."""
        with contextlib.suppress(RuntimeError):  # there are no more threads
            self._guard.start()
        # The interpreter's own function, which also ends thread pools that were not shut down.
        threading._shutdown()  # type: ignore[attr-defined]
        self._step = _EndStep.FUNCTIONS
        atexit._run_exitfuncs()
        self._step = _EndStep.STREAMS
        _flush()
        self._is_over.set()
        if self._guard.ident is not None:
            self._guard.join()

    def _watch(self) -> None:
        if self._is_over.wait(PATIENCE):
            return
        try:
            text = "the launch has ended; plaunch does not wait any longer for: "
            STDERR.write(FORM(text + self._held_by(), "WARNING") + "\n")
            rest = threading.Thread(target=self._finish, name="plaunch-last", daemon=True)
            rest.start()
            rest.join(_LAST_PATIENCE)
        finally:  # nothing else exits the process
            os._exit(self._code)

    def _finish(self) -> None:
        """Run the steps that the main thread cannot reach."""
        if self._step is _EndStep.THREADS:
            atexit._run_exitfuncs()
        _flush()

    def _held_by(self) -> str:
        frames = sys._current_frames()
        if self._step is _EndStep.THREADS:
            left = [
                thread
                for thread in threading.enumerate()
                if not thread.daemon and thread is not threading.main_thread()
            ]
            named = [
                f"thread {thread.name!r}{_place(frames.get(thread.ident or 0))}" for thread in left
            ]
        elif self._step is _EndStep.FUNCTIONS:
            named = [f"a function at exit{_place(frames.get(threading.main_thread().ident or 0))}"]
            named += [f"process {child.name!r} (pid {child.pid})" for child in _children()]
        else:
            named = ["stdout or stderr, which is blocked"]
        text = ", ".join(named) or "a thread that has just ended"
        if self._step is not _EndStep.STREAMS:
            text += ". A plugin must end what it starts, or start it as a daemon"
        return text


def _place(frame: FrameType | None) -> str:
    """Return the line that a thread runs, for messages."""
    if frame is None:
        return ""
    code = frame.f_code
    return f" (in {code.co_name}, {code.co_filename}:{frame.f_lineno})"


def _children() -> list[_Child]:
    module = sys.modules.get("multiprocessing.process")
    return [] if module is None else [*module.active_children()]


if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess as _Child


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()  # type: ignore[union-attr]
