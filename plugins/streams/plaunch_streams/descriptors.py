"""Opening what a worker's stdout and stderr are connected to."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress

from plaunch.errors import LogDirectoryError, PlaunchError

PIPE_SIZE = 1 << 20  # bytes that a worker can write while the launcher does not get to run


class StreamsError(PlaunchError, OSError):
    """No pipe or file for a worker's stream, because too many descriptors are open."""


def open_log(path: str, label: str) -> int:
    """Open the log file at `path` for adding to it; `label` says for which stream.

    Raises:
        LogDirectoryError: the file cannot be opened.
        StreamsError: too many descriptors are open.
    """
    try:
        # Several writers of one file (both streams, or a child) do not overwrite each other.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return _above_standard(os.open(path, flags, 0o666))
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise _too_many(label, error) from error
        raise LogDirectoryError(
            f"cannot open {path!r} for {label}: {error.strerror}; check the log directory and its "
            "permissions"
        ) from error


def open_pipe(label: str, *, is_large: bool) -> tuple[int, int]:
    """Open a pipe; return (read end, write end). A large one lets a worker run ahead further.

    Raises:
        StreamsError: too many descriptors are open.
    """
    try:
        read_end, write_end = (_above_standard(fd) for fd in os.pipe())
    except OSError as error:
        raise _too_many(label, error) from error
    if is_large and hasattr(fcntl, "F_SETPIPE_SZ"):
        # Beyond what the system allows one user, the usual size does.
        with suppress(OSError):
            fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
    return read_end, write_end


def _above_standard(fd: int) -> int:
    # A process that was started with one of its own three streams closed gets their numbers here; a
    # worker must not find this descriptor in the place of its inherited stream, nor we write to it.
    if fd > 2:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


def close_quietly(fd: int) -> None:
    """Close a descriptor that was only read from, or never used: nothing can be lost by it."""
    with suppress(OSError):
        os.close(fd)


def _too_many(label: str, error: OSError) -> StreamsError:
    return StreamsError(
        f"cannot make a pipe for {label}: {error.strerror}; raise the limit of open files "
        "(ulimit -n) or start fewer workers on this host"
    )
