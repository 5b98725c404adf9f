"""The first lines of the `plaunch` program, before anything that takes time to import."""

from __future__ import annotations

import atexit
import os
import signal
import sys

from plaunch.lazy import TYPE_CHECKING

_OWN_EXIT_FUNCTIONS = 1  # that of `logging`

if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn


def entry_point() -> NoReturn:
    """Run the command line of this process and end it.

    Ctrl-C is answered in one line from here on, also while modules are being imported. Any other
    signal ends a launcher without workers as it ends any program, also as the first process of a
    container.
    """
    if os.getpid() == 1:
        _end_at_signals()
    open_missing_streams()
    # The process is plaunch's own, and may inherit orphans (plaunch.process.launcher_variables).
    os.environ["PLAUNCH_LAUNCHER"] = str(os.getpid())
    try:
        from plaunch.cli.program import main  # inside the try, on purpose

        code = main()
    except KeyboardInterrupt:
        if sys.stderr is not None:
            sys.stderr.write("plaunch: interrupted while no worker was running\n")
        code = 130
    # All is said and done; the exit code stands, whoever presses Ctrl-C once more.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if _may_be_held():
        from plaunch.cli.ending import settle  # most launches need none of it

        settle(code)
    end_at_once(code)


def end_at_once(code: int) -> NoReturn:
    """Do what an interpreter does at its exit, but do not let it take itself apart.

    Nobody is left who needs that, and it takes up to half of the time from a worker's death to the
    launcher's end. A thread that comes back meanwhile from C++ code, torch's or that of a plugin,
    aborts the process. With `python -i`, or a profiler that writes at the end, the interpreter does
    it.
    """
    if sys.flags.inspect or "profile" in sys.modules:
        sys.exit(code)
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        sys.exit(code)  # the interpreter says what could not be written, and its exit code does
    os._exit(code)


def _end_at_signals() -> None:
    """Let signals end process 1 as they end other processes, until an agent handles them.

    The kernel throws away what the first process of a container has no handler for. With the
    process all others of the container end.
    """
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(signum) == signal.SIG_DFL:
            signal.signal(signum, _end_by_signal)


def _end_by_signal(signum: int, frame: FrameType | None) -> None:
    del frame
    os._exit(128 + signum)


def _may_be_held() -> bool:
    """Whether there is something of others in this process that could keep it from ending."""
    threading = sys.modules.get("threading")
    return (
        "torch" in sys.modules
        or atexit._ncallbacks() > _OWN_EXIT_FUNCTIONS
        or (threading is not None and threading.active_count() > 1)
    )


def open_missing_streams() -> None:
    """Open /dev/null as stdin, stdout or stderr where the caller has closed that.

    Otherwise the next descriptor of our own would get its number, and be taken for a stream.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            # The system gives the lowest number that is free, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
