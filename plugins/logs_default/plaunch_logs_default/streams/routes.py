"""Where stdout and stderr of each local rank go, and the pipes and files for that."""

from __future__ import annotations

import enum
import errno
import fcntl
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from plaunch.errors import LogDirectoryError, PlaunchError, PluginError
from plaunch.values import Record, Value, plain_dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TextIO

    from plaunch.process import LogsDest, Sink

PIPE_SIZE = 1 << 20  # bytes that a worker can write while the launcher is not scheduled


class StreamsError(PlaunchError, OSError):
    """A pipe or file for a worker's stream cannot be opened: too many descriptors are open."""


class RouteKind(enum.Enum):
    """What a worker's file descriptor is connected to."""

    INHERIT = "inherit"  # the same as the launcher's descriptor
    FILE = "file"  # the file, without the launcher
    TEE = "tee"  # a pipe to the launcher, which writes to the file and, prefixed, to the console
    CAPTURE = "capture"  # the launcher, which keeps the last lines and passes all on unchanged


@plain_dataclass
class Route(Value):
    """Where one stream of one worker goes.

    Args:
        kind: what the descriptor is connected to.
        file: the file that gets the stream; empty for none.
        is_shown: whether the launcher passes the stream on to the console.
        tail: a file that another program writes, whose lines the console shows as this stream's;
            empty for none.
    """

    kind: RouteKind
    file: str = ""
    is_shown: bool = True
    tail: str = ""


def choose_route(path: str, tee_path: str | None, *, capture: bool) -> Route:
    """Choose the route of a stream from its entries in a `LogsDest`.

    A `tee_path` that equals `path`, or is `os.devnull` for no file, means "teed". For any other
    `tee_path` torchrun shows the content of that file; so does plaunch.

    Args:
        path: the file to which the stream is redirected; empty for none.
        tee_path: the entry in the map of teed streams; None without one.
        capture: whether to keep the last lines of a stream that is not teed.
    """
    if tee_path:
        if tee_path == path or os.devnull in (path, tee_path):
            file = path if tee_path == os.devnull else tee_path
            return Route(RouteKind.TEE, file="" if file == os.devnull else file)
        route = choose_route(path, None, capture=capture)
        return Route(route.kind, route.file, route.is_shown, tail=tee_path)
    if tee_path == "" and path == "":
        return Route(RouteKind.TEE)
    if path == "":
        return Route(RouteKind.CAPTURE if capture else RouteKind.INHERIT)
    if path == os.devnull and capture:
        return Route(RouteKind.CAPTURE, is_shown=False)
    return Route(RouteKind.FILE, file=path, is_shown=False)


def without_launcher(route: Route) -> Route:
    """The route with `--keep-daemons`: the stream must not pass through the launcher.

    The worker writes the file of a teed stream itself, and the launcher follows it. Without a file,
    the worker writes to the console.
    """
    if route.kind is not RouteKind.TEE:
        return route
    if not route.file:
        return Route(RouteKind.INHERIT)
    return Route(RouteKind.FILE, file=route.file, is_shown=False, tail=route.file)


def through_sink(route: Route, *, keeps_file: bool) -> Route:
    """The route with a sink of the logs spec: the stream passes through the launcher.

    The sink replaces the file unless `keeps_file`.
    """
    file = route.file if keeps_file else ""
    kind = RouteKind.TEE if route.kind is RouteKind.TEE else RouteKind.CAPTURE
    return Route(kind, file, route.is_shown, route.tail)


@plain_dataclass
class StandardStream(Record):
    """Stdout, or stderr, of all local ranks.

    Args:
        name: "stdout" or "stderr".
        fd: the launcher's own descriptor, the console.
        file: device and inode of `fd`; None if it is closed, so that nothing can be shown.
        replaced: the object that gets teed lines instead of `fd`; see `find_replaced`.
        filters: substrings of the teed lines that are copied to `filtered_path`.
        filtered_path: the file for these lines; empty for none.
        routes: where each local rank's stream goes.
    """

    name: str
    fd: int
    file: tuple[int, int] | None
    replaced: TextIO | None
    filters: Sequence[str]
    filtered_path: str
    routes: Mapping[int, Route]

    @classmethod
    def create(
        cls,
        name: str,
        fd: int,
        dest: LogsDest,
        nprocs: int,
        *,
        filters: Sequence[str],
        capture: bool,
        keeps_daemons: bool,
    ) -> StandardStream:
        """Choose the routes of the stream `name` from `dest`; see `open_worker_streams`.

        Called before any descriptor is opened: a file could get the number of a closed `fd`.
        """
        paths: dict[int, str] = getattr(dest, f"{name}s")
        tee_paths: dict[int, str] = getattr(dest, f"tee_{name}s")
        routes = {
            rank: choose_route(paths.get(rank, ""), tee_paths.get(rank), capture=capture)
            for rank in range(nprocs)
        }
        if keeps_daemons:
            routes = {rank: without_launcher(route) for rank, route in routes.items()}
        filtered_path: str = getattr(dest, f"filtered_{name}")
        if filtered_path == os.devnull or filtered_path.startswith(os.devnull + os.sep):
            filtered_path = ""  # torch's spec puts it "below" /dev/null if there are no files
        return cls(
            name, fd, _find_file(fd), find_replaced(name, fd), filters, filtered_path, routes
        )

    def console_key(self, *, teed: bool) -> object:
        """Identifies the console of teed or other output; None if that cannot be shown.

        Stdout and stderr have the same console after `2>&1`: their order is kept, and their lines
        do not mix.
        """
        return self.file if self.replaced is None or not teed else id(self.replaced)


def _find_file(fd: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def find_replaced(name: str, fd: int) -> TextIO | None:
    """The object that Python code has assigned to `sys.<name>`; None if that writes to `fd`.

    `contextlib.redirect_stdout`, notebooks and tests replace `sys.stdout`. As in torchrun, the teed
    lines that the launcher shows go to the replacement. What workers write to the console
    themselves goes to the descriptor.

    None as well if `fd` is not the standard stream of that name. Another standard stream does not
    count as a replacement: the command line replaces stdout by stderr, so that nothing is printed
    between the workers' output.
    """
    stream: TextIO | None = getattr(sys, name)
    if stream is None or stream in (sys.__stdout__, sys.__stderr__):
        return None
    if fd != {"stdout": 1, "stderr": 2}[name]:
        return None
    try:
        return None if os.path.sameopenfile(stream.fileno(), fd) else stream
    except (OSError, ValueError, AttributeError):
        return stream  # `stream` has no descriptor, or `fd` is closed


def open_log(path: str, label: str) -> int:
    """Open the log file at `path` to append to it; `label` names the stream in errors.

    Raises:
        LogDirectoryError: the file cannot be opened.
        StreamsError: too many descriptors are open.
    """
    try:
        # O_APPEND: several writers of one file (both streams, or a child) do not overwrite lines.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return above_standard(os.open(path, flags, 0o666))
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
        read_end, write_end = (above_standard(fd) for fd in os.pipe())
    except OSError as error:
        raise _too_many(label, error) from error
    if is_large and hasattr(fcntl, "F_SETPIPE_SZ"):
        with suppress(OSError):  # above the user's limit: keep the default size
            fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
    return read_end, write_end


def above_standard(fd: int) -> int:
    """Move a new descriptor above 2, so that no worker inherits it as a standard stream.

    The system assigns the number of a standard stream that was closed when the launcher started.
    """
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
        f"cannot open a pipe or file for {label}: {error.strerror}; raise the limit of open files "
        "(ulimit -n) or start fewer workers on this host"
    )
