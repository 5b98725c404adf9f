"""Which way each output stream of each worker takes."""

from __future__ import annotations

import enum
import os

from plaunch.values import Value, plain_dataclass


class Way(enum.Enum):
    """What a worker's file descriptor is connected to."""

    INHERIT = "inherit"  # what the launcher's own is connected to
    FILE = "file"  # the file; the launcher sees nothing of it
    TEE = "tee"  # a pipe that the launcher reads: into the file and, prefixed, to the console
    CAPTURE = "capture"  # the launcher, which keeps the end and passes all on as it is


@plain_dataclass
class Route(Value):
    """The way of one stream of one worker.

    Args:
        way: what the descriptor is connected to.
        file: the file that gets the stream; empty for none.
        is_shown: whether the stream is passed on to the console.
        tail: a file that another program writes, and whose lines are shown as this stream's.
    """

    way: Way
    file: str = ""
    is_shown: bool = True
    tail: str = ""


def choose_route(path: str, tee_path: str | None, *, capture: bool) -> Route:
    """Decide the way of a stream from what a logs spec says about it.

    Args:
        path: where the stream is redirected to; empty for the launcher's own.
        tee_path: the entry in the map of teed streams; None without one.
        capture: whether a stream that is not teed has its last lines kept.

    The path of the redirect, or `os.devnull` for no file, means "teed". With any other path
    torchrun shows the content of that file, so it is shown here too, by reading it.
    """
    if tee_path:
        if tee_path == path or os.devnull in (path, tee_path):
            file = path if tee_path == os.devnull else tee_path
            return Route(Way.TEE, file="" if file == os.devnull else file)
        untold = choose_route(path, None, capture=capture)
        return Route(untold.way, untold.file, untold.is_shown, tail=tee_path)
    if tee_path == "" and path == "":
        return Route(Way.TEE)
    if path == "":
        return Route(Way.CAPTURE if capture else Way.INHERIT)
    if path == os.devnull and capture:
        return Route(Way.CAPTURE, is_shown=False)
    return Route(Way.FILE, file=path, is_shown=False)


def outliving(route: Route) -> Route:
    """The same for what may go on writing when the launcher is gone: never through the launcher.

    A teed stream's file is written by the worker itself, and followed. Without a file the worker
    writes to the console as it is.
    """
    if route.way is not Way.TEE:
        return route
    if not route.file:
        return Route(Way.INHERIT)
    return Route(Way.FILE, file=route.file, is_shown=False, tail=route.file)


def through_sink(route: Route, *, keeps_file: bool) -> Route:
    """The same for a stream that a sink of the logs spec takes: always through the launcher.

    The sink takes the place of the file, unless the file is to be kept as well.
    """
    file = route.file if keeps_file else ""
    way = Way.TEE if route.way is Way.TEE else Way.CAPTURE
    return Route(way, file, route.is_shown, route.tail)
