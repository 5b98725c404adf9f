"""Opens the files, pipes and terminals for a worker's stdout and stderr."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from plaunch.errors import LogDirectoryError, PlaunchError, PluginError

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.process import Sink

PIPE_SIZE = 1 << 20  # bytes that a worker can write while the launcher is not scheduled


class StreamsError(PlaunchError, OSError):
    """A pipe or file for a worker's stream cannot be opened: too many descriptors are open."""


def open_log(path: str, label: str) -> int:
    """Open the log file at `path` to append to it; `label` names the stream in errors.

    Raises:
        LogDirectoryError: the file cannot be opened.
        StreamsError: too many descriptors are open.
    """
    try:
        # O_APPEND: several writers of one file (both streams, or a child) do not overwrite lines.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return _above_standard(os.open(path, flags, 0o666))
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise _too_many(label, error) from error
        raise LogDirectoryError(
            f"cannot open {path!r} for {label}: {error.strerror}; check the log directory and its "
            "permissions"
        ) from error


def open_sink(opens: Callable[[int, str], Sink | None], rank: int, stream: str) -> Sink | None:
    """Call `open_sink` of a logs spec for a stream; None if it has no sink for it.

    Raises:
        PlaunchError: raised by the logs spec.
        PluginError: the logs spec raised another error, or returned an object that is not a sink.
        StreamsError: too many descriptors are open.
    """
    label = f"{stream} of local rank {rank}"
    try:
        sink = opens(rank, stream)
    except PlaunchError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            raise _too_many(label, error) from error
        raise PluginError(
            f"the logs spec cannot open a sink for {label}: {type(error).__name__}: {error}"
        ) from error
    if sink is None or all(callable(getattr(sink, name, None)) for name in ("write", "close")):
        return sink
    raise PluginError(
        f"the logs spec returned {sink!r} from open_sink for {label}, not an object with write and "
        "close"
    )


def open_pipe(label: str, *, is_large: bool) -> tuple[int, int]:
    """Open a pipe; return (read end, write end). `is_large`: try to give it `PIPE_SIZE` bytes.

    Raises:
        StreamsError: too many descriptors are open.
    """
    try:
        read_end, write_end = (_above_standard(fd) for fd in os.pipe())
    except OSError as error:
        raise _too_many(label, error) from error
    if is_large and hasattr(fcntl, "F_SETPIPE_SZ"):
        with suppress(OSError):  # above the user's limit: keep the default size
            fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
    return read_end, write_end


def open_terminal(like_fd: int) -> tuple[int, int]:
    r"""Open a pseudo-terminal with the settings of the terminal `like_fd`; (master, slave).

    It has the same size and settings, except that the bytes which the worker writes arrive
    unchanged at the master: the real terminal converts `\n` to `\r\n`.

    Raises:
        OSError: no pseudo-terminal is available.
    """
    import termios  # only with a terminal

    master, slave = os.openpty()
    try:
        iflag, oflag, _, lflag, _, _, characters = termios.tcgetattr(like_fd)
        # Keep its own speed and parity: it rejects those of a serial line.
        _, _, cflag, _, ispeed, ospeed, _ = termios.tcgetattr(slave)
        oflag &= ~termios.OPOST
        # An echo of the input would come back as the worker's output.
        lflag &= ~(termios.ECHO | termios.ECHONL)
        settings = [iflag, oflag, cflag, lflag, ispeed, ospeed, characters]
        termios.tcsetattr(slave, termios.TCSANOW, settings)
        copy_size(like_fd, master)
    except (OSError, termios.error) as error:
        os.close(master)
        os.close(slave)
        raise OSError(*error.args) from error
    return master, slave


def copy_size(from_fd: int, to_fd: int) -> None:
    """Set the window size of the terminal `to_fd` to that of `from_fd`."""
    import termios  # only with a terminal

    size = fcntl.ioctl(from_fd, termios.TIOCGWINSZ, bytes(8))
    if size != fcntl.ioctl(to_fd, termios.TIOCGWINSZ, bytes(8)):
        fcntl.ioctl(to_fd, termios.TIOCSWINSZ, size)


def _above_standard(fd: int) -> int:
    # If the launcher was started with a closed standard stream, the system reuses its number here.
    # A worker must not inherit this descriptor as its stdin, stdout or stderr.
    if fd > 2:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


def close_quietly(fd: int) -> None:
    """Close a descriptor, ignoring errors; for one without unwritten data."""
    with suppress(OSError):
        os.close(fd)


def _too_many(label: str, error: OSError) -> StreamsError:
    return StreamsError(
        f"cannot make a pipe for {label}: {error.strerror}; raise the limit of open files "
        "(ulimit -n) or start fewer workers on this host"
    )
