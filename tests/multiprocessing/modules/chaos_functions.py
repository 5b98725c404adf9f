"""Functions that misbehave as users' functions may; run in real workers."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import threading
import time

import worker_functions


def behave(how, *args):
    """Call the function named `how`, so that the workers of one start can differ."""
    function = globals().get(how) or getattr(worker_functions, how)
    return function(*args)


def sleep():
    time.sleep(600)


# --- values ---------------------------------------------------------------------------------------


def unpicklable():
    return lambda: None


def nested():
    value = []
    for _ in range(100_000):
        value = [value]
    return value


class RaisesWhenUnpickled:
    """Can be pickled, but raises when it is unpickled."""

    def __init__(self, kind, *args):
        self.reduced = (_raise, (kind, *args))

    def __reduce__(self):
        return self.reduced


def _raise(kind, *args):
    raise kind(*args)


def raises_when_unpickled(kind, *args):
    return RaisesWhenUnpickled(kind, *args)


# --- exceptions -----------------------------------------------------------------------------------


class HoldsLockError(Exception):
    """Cannot be pickled."""

    def __init__(self, message):
        super().__init__(message)
        self.lock = threading.Lock()


class NeedsTwoError(Exception):
    """Can be pickled, but not unpickled, which calls it with one argument."""

    def __init__(self, message, number):
        super().__init__(f"{message} {number}")


class UnprintableError(Exception):
    """Cannot be printed."""

    def __str__(self):
        raise RuntimeError("no words")

    __repr__ = __str__


class UnusualError(BaseException):
    """Not an Exception."""


def raise_holds_lock():
    raise HoldsLockError("it holds a lock")


def raise_needs_two():
    raise NeedsTwoError("two things", 2)


def raise_unprintable():
    raise UnprintableError


def raise_unusual():
    raise UnusualError("not an Exception")


def raise_at_length(megabytes):
    raise ValueError("begin " + "x" * (megabytes << 20) + " end")


def raise_bytes_and_surrogates():
    raise ValueError("a lone surrogate: \udcff, a NUL: \0, an escape: \x1b[31m")


def recurse():
    recurse()


def run_out_of_memory():
    limit = 1 << 30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return bytes(2 * limit)


def raise_without_a_place_for_the_report():
    shutil.rmtree(os.path.dirname(os.environ["TORCHELASTIC_ERROR_FILE"]))
    raise ValueError("nowhere to write")


def raise_with_a_full_disk():
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    raise ValueError("no room to write")


# --- ends -----------------------------------------------------------------------------------------


def exit_at_once(code):
    os._exit(code)


def kill_self(signum):
    os.kill(os.getpid(), signum)
    sleep()


def become(program):
    os.execv(program, [program])


def close_everything_and(how, *args):
    os.closerange(0, 1024)
    return behave(how, *args)


def close_the_streams_and(how, *args):
    sys.stdout.close()
    sys.stderr.close()
    for fd in (0, 1, 2):
        os.close(fd)
    return behave(how, *args)


def refuse_signals_and(how, *args):
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    return behave(how, *args)


def write_then(megabytes, how, *args):
    """Write `megabytes` MiB of numbered lines of 64 bytes to stdout, then call `how`."""
    rank = os.environ["LOCAL_RANK"]
    number = 0
    for _ in range(megabytes):
        lines = [b"%s %012d %48d\n" % (rank.encode(), n, 0) for n in range(number, number + 16384)]
        number += len(lines)
        with open(1, "wb", closefd=False) as stdout:
            stdout.write(b"".join(lines))
    return behave(how, *args)


def write_without_a_line_end(megabytes):
    os.write(1, b"begin")
    for _ in range(megabytes):
        os.write(1, b"x" * (1 << 20))
    return "written"
