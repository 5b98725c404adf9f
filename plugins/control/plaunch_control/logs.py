"""Printing and following the log files of workers."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
import time

from plaunch.lazy import TYPE_CHECKING
from plaunch.numbers import parse_ranks

from plaunch_control.client import ClientError, GoneError, RefusedError, SilentError, ask

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator
    from typing import Any, BinaryIO

    from plaunch_control.launches import Launch

_CHUNK = 1 << 20  # bytes
_POLL = 0.2  # seconds between two reads of the files
_FILES_POLL = 1.0  # seconds between two requests for the list of files


class WorkerLog:
    """The output of one stream of a worker, including files rotated by `--log-rotate`.

    Args:
        rank: the global rank of the worker.
        path: the current file; `<path>.1` is the newest rotated one.
    """

    def __init__(self, rank: int, path: str) -> None:
        self.rank = rank
        self._path = path
        self._file: BinaryIO | None = None  # the file that was read last
        self._rest = b""

    def lines(self, *, is_last: bool) -> Iterator[bytes]:
        """The complete lines since the last call; with `is_last`, also an incomplete last line.

        Raises:
            OSError: a file cannot be read.
        """
        if self._file is not None:
            yield from self._read()
        for newer in self._newer():
            if self._file is not None:
                yield from self._read()  # the rest that was written before the rotation
                self._file.close()
            self._file = newer
            yield from self._read()
        if is_last:
            if self._rest:
                yield self._rest
            if self._file is not None:
                self._file.close()

    def _read(self) -> Iterator[bytes]:
        while piece := self._file.read(_CHUNK):  # type: ignore[union-attr]
            *lines, self._rest = (self._rest + piece).split(b"\n")
            yield from lines

    def _newer(self) -> list[BinaryIO]:
        """The files created after the one that was read last, the oldest first."""
        found: list[BinaryIO] = []
        number = 0
        # A rotation meanwhile only increases the numbers, so in this direction none is missed.
        while (file := _open(f"{self._path}.{number}" if number else self._path)) or not number:
            number += 1
            if file is None:
                continue  # during a rotation the current file may be missing
            if any(_are_same(file, other) for other in found):
                file.close()
                continue
            if self._file is not None and _are_same(file, self._file):
                file.close()
                break
            found.insert(0, file)
        return found


def _are_same(one: BinaryIO, other: BinaryIO) -> bool:
    return os.path.sameopenfile(one.fileno(), other.fileno())


def _open(path: str) -> BinaryIO | None:
    try:
        # A logs spec may use a named pipe, whose open would block.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(0, "is not a regular file", path)
    return os.fdopen(fd, "rb")


class _LogPrinter:
    """Prints the matching lines of the selected logs.

    Args:
        ranks: global ranks; None for all.
        pattern: print only lines that match it; None for all.
    """

    def __init__(self, ranks: frozenset[int] | None, pattern: re.Pattern[bytes] | None) -> None:
        self._ranks = ranks
        self._pattern = pattern
        self._logs: dict[tuple[int, str], WorkerLog] = {}

    def change(self, data: dict[str, Any]) -> None:
        """Change to the logs that `/v1/logs` lists; the other ones are first printed to their end.

        Raises:
            ClientError: it lists none.
        """
        files = [
            one for one in data["files"] if self._ranks is None or one["global_rank"] in self._ranks
        ]
        if not files:
            raise RefusedError("none of these ranks runs on this node", 409, data)
        streams = ("stdout", "stderr")
        found = {(one["global_rank"], one[s]): None for one in files for s in streams if one[s]}
        if not found:
            raise RefusedError(
                "these workers write no log files; launch with --redirects or --tee, and --log-dir",
                409,
                data,
            )
        if not self._logs and not any(os.path.exists(path) for _, path in found):
            # The logs spec or the user may have moved them.
            raise ClientError(f"{next(iter(found))[1]}: no such file")
        self._show([log for key, log in self._logs.items() if key not in found], is_last=True)
        self._logs = {key: self._logs.get(key) or WorkerLog(*key) for key in found}

    def show(self, *, is_last: bool = False) -> None:
        """Print new lines; with `is_last`, also incomplete last lines."""
        self._show(self._logs.values(), is_last=is_last)

    def _show(self, logs: Iterable[WorkerLog], *, is_last: bool) -> None:
        is_prefixed = len({rank for rank, _ in self._logs}) > 1
        write = sys.stdout.buffer.write
        for log in logs:
            prefix = f"[{log.rank}] ".encode() if is_prefixed else b""
            for line in log.lines(is_last=is_last):
                if self._pattern is None or self._pattern.search(line):
                    write(prefix + line + b"\n")
        sys.stdout.buffer.flush()


def show_logs(launch: Launch, data: dict[str, Any], options: argparse.Namespace) -> int:
    """Print the logs that `/v1/logs` lists; with `--follow`, until the launch ends.

    Raises:
        ClientError: there are no such files, or one cannot be read.
    """
    printer = _LogPrinter(
        None if options.rank is None else _ranks(options.rank),
        None if options.grep is None else _pattern(options.grep),
    )
    try:
        printer.change(data)
        while options.follow and _is_alive(launch, printer):
            pass
        printer.show(is_last=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ClientError(f"{error.filename}: {error.strerror}") from None
    return 0


def _is_alive(launch: Launch, printer: _LogPrinter) -> bool:
    """Print new lines for a second, then change to the current files; return whether it runs."""
    for _ in range(int(_FILES_POLL / _POLL)):
        printer.show()
        time.sleep(_POLL)
    # Between two rounds there are no workers; a suspended launch may resume.
    with contextlib.suppress(SilentError, RefusedError):
        try:
            printer.change(ask(launch.path, "/v1/logs"))
        except GoneError:
            return False
    return True


def _ranks(text: str) -> frozenset[int]:
    try:
        return parse_ranks(text)
    except ValueError as error:
        raise ClientError(str(error)) from None


def _pattern(text: str) -> re.Pattern[bytes]:
    try:
        return re.compile(os.fsencode(text))
    except re.error as error:
        raise ClientError(f"{text!r} is not a regular expression: {error}") from None
