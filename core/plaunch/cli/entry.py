"""The start and the end of the `plaunch` program; imports nothing slow."""

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
    """Run the command line of this process, and exit.

    Ctrl-C prints one line, also during imports. Any other signal ends a launcher without workers as
    it ends any program, also if the launcher is the first process of a container.
    """
    if os.getpid() == 1:
        _end_at_signals()
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
    if _may_be_held():
        from plaunch.cli.ending import settle  # few launches need it

        settle(code)
    end_at_once(code)


def end_at_once(code: int) -> NoReturn:
    """Run exit functions and flush, then exit without the interpreter's finalization.

    Finalization takes up to half of the time from a worker's death to the launcher's exit, and a
    thread that returns from C++ code meanwhile, of torch or of a plugin, aborts the process. With
    `python -i`, or a profiler that writes at exit, the interpreter exits as usual.
    """
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


def _end_at_signals() -> None:
    """Let signals end process 1 as they end other processes, until an agent handles them.

    The kernel discards signals for which the first process of a container has no handler. When it
    exits, the kernel ends all other processes of the container.
    """
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(signum) == signal.SIG_DFL:
            signal.signal(signum, _end_by_signal)


def _end_by_signal(signum: int, frame: FrameType | None) -> None:
    del frame
    os._exit(128 + signum)


def _may_be_held() -> bool:
    """Whether threads or exit functions of others could keep this process from exiting."""
    threading = sys.modules.get("threading")
    return (
        "torch" in sys.modules
        or atexit._ncallbacks() > _OWN_EXIT_FUNCTIONS
        or (threading is not None and threading.active_count() > 1)
    )


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
