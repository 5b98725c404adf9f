"""The end of the command line's process, which nothing that is left in it can hold.

The interpreter waits for threads that are no daemons, and for exit functions, for ever. Both are
given a moment here, as in any program; then they are named, and the process ends all the same.
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
_LAST_PATIENCE = 0.3  # seconds for what can still be done after that


def settle(code: int) -> None:
    """Let what is left in the process end; the process ends with `code` if that takes too long.

    Returns within two seconds, or not at all. What is then left to do is `entry.end_at_once`.
    """
    _Ending(code).wait()


class _Step(enum.Enum):
    THREADS = 0
    FUNCTIONS = 1
    STREAMS = 2


class _Ending:
    """What the interpreter does before it takes itself apart, watched by a thread."""

    def __init__(self, code: int) -> None:
        self._code = code
        self._step = _Step.THREADS
        self._is_over = threading.Event()
        self._guard = threading.Thread(target=self._watch, name="plaunch-end", daemon=True)

    def wait(self) -> None:
        """Return when all is done; if that takes too long, the process ends meanwhile."""
        with contextlib.suppress(RuntimeError):  # there are no more threads
            self._guard.start()
        # What the interpreter itself calls, which also ends pools that nobody has shut down.
        threading._shutdown()  # type: ignore[attr-defined]
        self._step = _Step.FUNCTIONS
        atexit._run_exitfuncs()
        self._step = _Step.STREAMS
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
        finally:  # nothing else ends the process
            os._exit(self._code)

    def _finish(self) -> None:
        """Do what the main thread does not come to."""
        if self._step is _Step.THREADS:
            atexit._run_exitfuncs()
        _flush()

    def _held_by(self) -> str:
        frames = sys._current_frames()
        if self._step is _Step.THREADS:
            left = [
                thread
                for thread in threading.enumerate()
                if not thread.daemon and thread is not threading.main_thread()
            ]
            named = [
                f"thread {thread.name!r}{_place(frames.get(thread.ident or 0))}" for thread in left
            ]
        elif self._step is _Step.FUNCTIONS:
            named = [f"a function at exit{_place(frames.get(threading.main_thread().ident or 0))}"]
            named += [f"process {child.name!r} (pid {child.pid})" for child in _children()]
        else:
            named = ["stdout or stderr, which takes nothing"]
        text = ", ".join(named) or "a thread that has just ended"
        if self._step is not _Step.STREAMS:
            text += ". A plugin must end what it starts, or start it as a daemon"
        return text


def _place(frame: FrameType | None) -> str:
    """Where a thread is, for messages."""
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
