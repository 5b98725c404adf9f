"""Stdout or stderr of all local ranks: the launcher's descriptor, and the route of each rank."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from plaunch.values import Record, plain_dataclass

from plaunch_logs_default.streams.console import find_replaced
from plaunch_logs_default.streams.lines import encode
from plaunch_logs_default.streams.routes import Route, choose_route, without_launcher

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TextIO

    from plaunch.process import LogsDest


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
        """Choose the routes of the stream `name` from `dest`; see `WorkerStreams`.

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
