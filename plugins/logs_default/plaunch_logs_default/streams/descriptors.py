"""Opening what a worker's stdout and stderr are connected to."""

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


def open_sink(open_its: Callable[[int, str], Sink | None], rank: int, stream: str) -> Sink | None:
    """What a logs spec opens for a stream, if anything.

    Raises:
        PlaunchError: as the logs spec says.
        PluginError: it has failed, or returns something else.
        StreamsError: too many descriptors are open.
    """
    label = f"{stream} of local rank {rank}"
    try:
        sink = open_its(rank, stream)
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
        f"the logs spec returned {sink!r} from open_sink for {label}, which has no write and close"
    )


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


def open_terminal(like_fd: int) -> tuple[int, int]:
    r"""Open a pseudo-terminal that looks like the terminal `like_fd`; return (master, slave).

    The worker finds the same size and the same settings, but the bytes that it writes arrive at
    the master as they are: the real terminal is the one that turns `\n` into `\r\n`.

    Raises:
        OSError: the system has no pseudo-terminal to give.
    """
    import termios  # only when there is a terminal

    master, slave = os.openpty()
    try:
        iflag, oflag, _, lflag, _, _, characters = termios.tcgetattr(like_fd)
        # Speed and parity stay its own: those of a serial line would be refused.
        _, _, cflag, _, ispeed, ospeed, _ = termios.tcgetattr(slave)
        oflag &= ~termios.OPOST
        # Nobody types here; an echo would come back as the worker's output.
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
    """Give the terminal `to_fd` the window size of `from_fd`."""
    import termios  # only when there is a terminal

    size = fcntl.ioctl(from_fd, termios.TIOCGWINSZ, bytes(8))
    if size != fcntl.ioctl(to_fd, termios.TIOCGWINSZ, bytes(8)):
        fcntl.ioctl(to_fd, termios.TIOCSWINSZ, size)


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
