"""The log files of workers, one after the other, or as they grow."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
import time

from plaunch.lazy import TYPE_CHECKING

from plaunch_control.client import ClientError, GoneError, RefusedError, SilentError, ask
from plaunch_control.ranks import parse_ranks

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator
    from typing import Any, BinaryIO

    from plaunch_control.launches import Launch

_CHUNK = 1 << 20  # bytes
_PAUSE = 0.2  # seconds between two looks at the files
_QUESTIONS_APART = 1.0  # seconds between two questions whether there are other files


class Log:
    """What one stream of a worker has written, also in the older files of `--log-rotate`.

    Args:
        rank: the global rank of the worker.
        path: the file; `<path>.1` is the newest of the older ones.
    """

    def __init__(self, rank: int, path: str) -> None:
        self.rank = rank
        self._path = path
        self._file: BinaryIO | None = None  # that was read last
        self._rest = b""

    def lines(self, *, is_last: bool) -> Iterator[bytes]:
        """The complete lines that have come since the last call; if it is the last, the rest, too.

        Raises:
            OSError: a file cannot be read.
        """
        if self._file is not None:
            yield from self._read()
        for newer in self._newer():
            if self._file is not None:
                yield from self._read()  # what came before the next one was begun
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
        """The files that were begun after the one that was read last, the oldest first."""
        found: list[BinaryIO] = []
        number = 0
        # Files get higher numbers meanwhile, so that none is missed in this direction.
        while (file := _open(f"{self._path}.{number}" if number else self._path)) or not number:
            number += 1
            if file is None:
                continue  # another file is just being begun
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
        # A logs spec may have pipes, at which nobody is to wait.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(0, "is no regular file", path)
    return os.fdopen(fd, "rb")


class _Screen:
    """Shows the wanted lines of the wanted logs.

    Args:
        ranks: global ranks; None for all.
        pattern: what a line must have; None if nothing.
    """

    def __init__(self, ranks: frozenset[int] | None, pattern: re.Pattern[bytes] | None) -> None:
        self._ranks = ranks
        self._pattern = pattern
        self._logs: dict[tuple[int, str], Log] = {}

    def change(self, told: dict[str, Any]) -> None:
        """Go over to the logs that `/v1/logs` tells of; those that go are shown to their end.

        Raises:
            ClientError: there are none.
        """
        files = [
            one for one in told["files"] if self._ranks is None or one["global_rank"] in self._ranks
        ]
        if not files:
            raise RefusedError("none of these ranks runs on this node", 409, told)
        streams = ("stdout", "stderr")
        found = {(one["global_rank"], one[s]): None for one in files for s in streams if one[s]}
        if not found:
            raise RefusedError(
                "these workers write to no log files; --redirects or --tee, and --log-dir, keep "
                "them",
                409,
                told,
            )
        if not self._logs and not any(os.path.exists(path) for _, path in found):
            # A logs spec may have moved them, or the user.
            raise ClientError(f"{next(iter(found))[1]}: there is no such file")
        self._show([log for key, log in self._logs.items() if key not in found], is_last=True)
        self._logs = {key: self._logs.get(key) or Log(*key) for key in found}

    def show(self, *, is_last: bool = False) -> None:
        """Show what has come since the last call; if it is the last, incomplete lines as well."""
        self._show(self._logs.values(), is_last=is_last)

    def _show(self, logs: Iterable[Log], *, is_last: bool) -> None:
        is_prefixed = len({rank for rank, _ in self._logs}) > 1
        write = sys.stdout.buffer.write
        for log in logs:
            prefix = f"[{log.rank}] ".encode() if is_prefixed else b""
            for line in log.lines(is_last=is_last):
                if self._pattern is None or self._pattern.search(line):
                    write(prefix + line + b"\n")
        sys.stdout.buffer.flush()


def show_logs(launch: Launch, told: dict[str, Any], options: argparse.Namespace) -> int:
    """Show what `/v1/logs` has told of; with `--follow`, also later rounds, until the launch ends.

    Raises:
        ClientError: there are no such files, or one cannot be read.
    """
    screen = _Screen(
        None if options.rank is None else _ranks(options.rank),
        None if options.grep is None else _pattern(options.grep),
    )
    try:
        screen.change(told)
        while options.follow and _is_alive(launch, screen):
            pass
        screen.show(is_last=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ClientError(f"{error.filename}: {error.strerror}") from None
    return 0


def _is_alive(launch: Launch, screen: _Screen) -> bool:
    """Show what comes within a second, and see whether the launch goes on with other files."""
    for _ in range(int(_QUESTIONS_APART / _PAUSE)):
        screen.show()
        time.sleep(_PAUSE)
    # Between two rounds it has no workers; one that is suspended may go on.
    with contextlib.suppress(SilentError, RefusedError):
        try:
            screen.change(ask(launch.path, "/v1/logs"))
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
        raise ClientError(f"{text!r} is no regular expression: {error}") from None
