"""Stdout or stderr of all local ranks: the launcher's descriptor, and the route of each rank."""

from __future__ import annotations

import enum
import os
from typing import TYPE_CHECKING

from plaunch.values import Record, Value, plain_dataclass

from plaunch_logs_default.streams.console import find_replaced
from plaunch_logs_default.streams.lines import encode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TextIO

    from plaunch.process import LogsDest


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
    filters: Sequence[bytes]
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
        substrings = [encode(text) for text in filters]
        return cls(
            name, fd, _find_file(fd), find_replaced(name, fd), substrings, filtered_path, routes
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
