"""The log files of workers, one after the other, or as they grow."""

from __future__ import annotations

import os
import re
import sys
import time

from plaunch_control.client import ClientError, RefusedError
from plaunch_control.door import remove_stale
from plaunch_control.ranks import parse_ranks

TYPE_CHECKING = False  # importing `typing` takes milliseconds
if TYPE_CHECKING:
    import argparse
    from typing import Any, BinaryIO

    from plaunch_control.launches import Launch

_CHUNK = 1 << 20  # bytes


class _Tail:
    """One file: the lines that are complete, as they come."""

    def __init__(self, rank: int, path: str) -> None:
        self.rank = rank
        self._file: BinaryIO = open(path, "rb")  # noqa: SIM115 - until the program ends
        self._rest = b""

    def lines(self, *, is_last: bool) -> list[bytes]:
        """Those that have come; at the end, with one that is not complete."""
        found: list[bytes] = []
        while piece := self._file.read(_CHUNK):
            *lines, self._rest = (self._rest + piece).split(b"\n")
            found += lines
        if is_last and self._rest:
            found.append(self._rest)
            self._rest = b""
        return found


def show_logs(
    launch: Launch, told: dict[str, Any], options: argparse.Namespace, pause: float
) -> int:
    """Show what `/v1/logs` has told of; with `--follow`, until the launch ends.

    Raises:
        ClientError: there are no such files.
    """
    wanted = None if options.rank is None else _ranks(options.rank)
    pattern = None if options.grep is None else _pattern(options.grep)
    files = [one for one in told["files"] if wanted is None or one["global_rank"] in wanted]
    if not files:
        raise RefusedError("none of these ranks runs on this node", 409, told)
    paths = [(one["global_rank"], one[s]) for one in files for s in ("stdout", "stderr") if one[s]]
    if not paths:
        raise RefusedError(
            "these workers write to no log files; --redirects or --tee, and --log-dir, keep them",
            409,
            told,
        )
    try:
        tails = [_Tail(rank, path) for rank, path in paths]
    except OSError as error:
        raise ClientError(f"{error.filename}: {error.strerror}") from None
    prefixed = len({rank for rank, _ in paths}) > 1
    while True:
        is_last = not options.follow or not os.path.exists(launch.path) or remove_stale(launch.path)
        for tail in tails:
            for line in tail.lines(is_last=is_last):
                if pattern is None or pattern.search(line):
                    prefix = f"[{tail.rank}] ".encode() if prefixed else b""
                    sys.stdout.buffer.write(prefix + line + b"\n")
        sys.stdout.buffer.flush()
        if is_last:
            return 0
        time.sleep(pause)


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
