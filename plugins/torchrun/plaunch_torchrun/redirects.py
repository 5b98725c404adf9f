"""Redirecting stdout or stderr of this process to a file, for Python, C and child processes.

plaunch itself does not use it; the names are torch's.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

from plaunch.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

_DESCRIPTORS = {"stdout": 1, "stderr": 2}


def get_libc() -> Any:
    """Load the C library of this process; None if it cannot be loaded."""
    try:
        import ctypes  # rare

        return ctypes.CDLL(None)
    except (ImportError, OSError):
        return None


@contextlib.contextmanager
def redirect(std: str, to_file: str) -> Iterator[None]:
    """Redirect `std`, `"stdout"` or `"stderr"`, to a file until the block ends.

    The descriptor itself is redirected, so that output of C code and of child processes is
    included; earlier output is flushed first. Python's `sys.stdout` is redirected even if it is an
    object without that descriptor (in a test runner or a notebook). Blocks can be nested, and
    several may use one file. The file is overwritten; its directory must exist.

    Raises:
        UsageError: `std` is another word (a ValueError, as in torch).
        OSError: the file cannot be opened.
    """
    fd = _DESCRIPTORS.get(std)
    if fd is None:
        raise UsageError(f"{std!r} is not a standard stream; choices: stderr, stdout")
    with contextlib.ExitStack() as stack:
        saved = _duplicate(fd)
        if saved is not None:
            stack.callback(os.close, saved)
        target = _open(to_file)
        try:
            _flush(std)
            os.dup2(target, fd)
        finally:
            os.close(target)
        stack.callback(_restore, std, fd, saved)
        with _python_stream(std, fd):
            yield


redirect_stdout = functools.partial(redirect, "stdout")
redirect_stderr = functools.partial(redirect, "stderr")


def get_std_cm(
    std_rd: str, redirect_fn: Callable[[str], AbstractContextManager[None]]
) -> AbstractContextManager[None]:
    """`redirect_fn(std_rd)`, or a context that does nothing if `std_rd` is empty."""
    return redirect_fn(std_rd) if std_rd else contextlib.nullcontext()


@contextlib.contextmanager
def _python_stream(std: str, fd: int) -> Iterator[None]:
    """Make `sys.stdout` or `sys.stderr` write to `fd`, if it does not already."""
    stream: TextIO | None = getattr(sys, std)
    if stream is not None and _descriptor(stream) == fd:
        yield
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    with open(
        fd, "w", buffering=1, encoding=encoding, errors="backslashreplace", closefd=False
    ) as replacement:
        setattr(sys, std, replacement)
        try:
            yield
        finally:
            # The block may have replaced the stream by its own object, which is kept.
            if getattr(sys, std) is replacement:
                setattr(sys, std, stream)


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None


def _open(path: str) -> int:
    # Appending: two writers of one file (both streams, or a child) do not overwrite each other.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
    fd = os.open(path, flags, 0o666)
    if fd > 2:
        return fd
    # It got the number of a closed standard stream; as 1 or 2 it would be its own target.
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


def _duplicate(fd: int) -> int | None:
    """Copy `fd` to a descriptor that child processes do not inherit; None if it is closed."""
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    except OSError:
        return None


def _restore(std: str, fd: int, saved: int | None) -> None:
    _flush(std)
    if saved is None:
        os.close(fd)
    else:
        os.dup2(saved, fd)


def _flush(std: str) -> None:
    """Flush the buffers of Python and the C library for one stream."""
    stream: TextIO | None = getattr(sys, std)
    if stream is not None:
        # The stream may be closed, or its reader may be gone.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    libc = get_libc()
    if libc is None:
        return
    import ctypes  # rare

    # Flush only one stream: flushing all blocks if a thread is reading from stdin.
    with contextlib.suppress(ValueError):
        libc.fflush(ctypes.c_void_p.in_dll(libc, std))
