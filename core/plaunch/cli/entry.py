"""The start and the end of the `plaunch` program; imports nothing slow."""

from __future__ import annotations

import atexit
import contextlib
import enum
import os
import signal
import sys
import threading
import time

from plaunch.lazy import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

    from plaunch.threads import FinalWork

PATIENCE = 1.5  # seconds for threads and exit functions together
_LAST_PATIENCE = 0.3  # seconds for the remaining steps after that
_OWN_EXIT_FUNCTIONS = 1  # that of `logging`


def entry_point() -> NoReturn:
    """Run the command line of this process, and exit.

    Ctrl-C prints one line, also during imports. Any other signal ends a launcher without workers as
    it ends any program, also if the launcher is the first process of a container.
    """
    end_at_signals()
    open_missing_streams()
    # The process is plaunch's own, so it may inherit orphans: see launcher_variables.
    os.environ["PLAUNCH_LAUNCHER"] = str(os.getpid())
    try:
        from plaunch.cli.program import main  # Ctrl-C during this import is caught

        code = main()
    except KeyboardInterrupt:
        if sys.stderr is not None:
            sys.stderr.write("plaunch: interrupted while no worker was running\n")
        code = 130
    # The exit code is final: ignore another Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end(code)


def open_missing_streams() -> None:
    """Open /dev/null as stdin, stdout or stderr if the caller has closed it.

    Otherwise the next descriptor that plaunch opens would get that number and be used as a stream.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            # The system returns the lowest free number, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def end_at_signals() -> None:
    """Let signals end process 1 as they end other processes, until an agent handles them.

    The kernel discards signals for which the first process of a container has no handler. When it
    exits, the kernel ends all other processes of the container.
    """
    if os.getpid() != 1:
        return
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(signum) == signal.SIG_DFL:
            signal.signal(signum, _end_by_signal)


def _end_by_signal(signum: int, frame: FrameType | None) -> None:
    del frame
    os._exit(128 + signum)


# --- the end --------------------------------------------------------------------------------------


def end(code: int, patience: float = PATIENCE) -> NoReturn:
    """Run exit functions and flush, then exit without the interpreter's finalization.

    Finalization takes up to half of the time from a worker's death to the launcher's exit, and a
    thread that returns from C++ code meanwhile, of torch or of a plugin, aborts the process. With
    `python -i`, or a profiler that writes at exit, the interpreter exits as usual.

    The interpreter waits without a limit for threads that are not daemons, and for exit functions.
    Here both get `patience` seconds; then a message names them and the process exits. Only work
    that plaunch has to finish, a `plaunch.threads.FinalWork`, has more time.
    """
    if (
        "torch" in sys.modules
        or atexit._ncallbacks() > _OWN_EXIT_FUNCTIONS
        or threading.active_count() > 1
    ):
        _BoundedExit(code, patience).run()
    if sys.flags.inspect or "profile" in sys.modules:
        sys.exit(code)
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        sys.exit(code)  # the interpreter reports what could not be written
    os._exit(code)


class _EndStep(enum.Enum):
    THREADS = 0
    FUNCTIONS = 1
    STREAMS = 2


class _BoundedExit:
    """Runs the interpreter's exit steps while a thread watches the time."""

    def __init__(self, code: int, patience: float) -> None:
        self._code = code
        self._patience = patience
        self._step = _EndStep.THREADS
        self._is_over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="plaunch-end", daemon=True)

    def run(self) -> None:
        """Run all steps; if they take too long, the watching thread exits the process."""
        with contextlib.suppress(RuntimeError):  # there are no more threads
            self._watcher.start()
        # The interpreter's own function, which also ends thread pools that were not shut down.
        threading._shutdown()  # type: ignore[attr-defined]
        self._step = _EndStep.FUNCTIONS
        atexit._run_exitfuncs()
        self._step = _EndStep.STREAMS
        _flush()
        self._is_over.set()
        if self._watcher.ident is not None:
            self._watcher.join()

    def _watch(self) -> None:
        if self._is_over_in_time():
            return
        try:
            from plaunch.cli.console import STDERR  # few launches come here

            text = "the launch has ended; plaunch does not wait any longer for: "
            STDERR.say(text + self._held_by(), "WARNING")
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

    def _is_over_in_time(self) -> bool:
        if self._is_over.wait(self._patience):
            return True
        awaited = _final_work()
        for work in awaited:
            work.join(max(work.until - time.monotonic(), 0.0))
        if awaited and not _final_work():  # the steps behind it begin only now
            return self._is_over.wait(self._patience)
        # On a busy machine, the main thread may not have noticed yet that all others have ended.
        is_held = self._step is not _EndStep.THREADS or _other_threads()
        return self._is_over.wait(0.0 if is_held else self._patience)

    def _held_by(self) -> str:
        if self._step is _EndStep.STREAMS:
            return "stdout or stderr, which is blocked"
        if work := _final_work():
            return " and ".join(one.what for one in work)
        named = [f"thread {thread.name!r}{_place(thread)}" for thread in _other_threads()]
        if self._step is _EndStep.FUNCTIONS or not named:
            named = [f"a function at exit{_place(threading.main_thread())}"]
            if module := sys.modules.get("multiprocessing.process"):
                named += [f"process {c.name!r} (pid {c.pid})" for c in module.active_children()]
        return f"{', '.join(named)}. A plugin must end what it starts, or start it as a daemon"


def _other_threads() -> list[threading.Thread]:
    main = threading.main_thread()
    return [one for one in threading.enumerate() if not (one.daemon or one is main)]


def _final_work() -> list[FinalWork]:
    module = sys.modules.get("plaunch.threads")
    kind: type[FinalWork] | None = getattr(module, "FinalWork", None)
    return [] if kind is None else [t for t in threading.enumerate() if isinstance(t, kind)]


def _place(thread: threading.Thread) -> str:
    """Return the line that a thread runs, for messages."""
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None:
        return ""
    code = frame.f_code
    return f" (in {code.co_name}, {code.co_filename}:{frame.f_lineno})"


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()  # type: ignore[union-attr]
