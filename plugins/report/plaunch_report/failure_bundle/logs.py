"""The files of an attempt's workers: their logs, and their error files.

Workers may have replaced them: only regular files are read, up to a limit.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import stat
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from plaunch.process import find_run_dir

from plaunch_report.failure_bundle.gathering import File, MissingError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from plaunch.process import LogsSpecs, ProcessFailure

LINES = 1000  # of each log
_MAX_BYTES = 1 << 20  # bytes of a log, and of an error file
_MAX_TOTAL = 16 << 20  # bytes of all logs, and of all error files
_LOGS = ("stdout.log", "stderr.log")
_ODD = re.compile(r"[^\w.-]+", re.ASCII)
_ATTEMPT = re.compile(r"attempt_(\d+)(?:\.(\d+))?")
_ERROR_FILE = "error.json"
_BLOCK = 1 << 16


class Folders(NamedTuple):
    """The folders of a launch.

    Args:
        run: the folder of its files; empty if there is none.
        kept: the same if it remains after the launch; else empty.
    """

    run: str
    kept: str


def find_folders(specs: LogsSpecs | None, run_id: str) -> Folders:
    """Find the folders of a logs spec.

    Raises:
        LogDirectoryError: its folder cannot be created.
    """
    kept = find_run_dir(specs, run_id)
    temporary = None if specs is None else specs.temporary_dir
    return Folders(kept or temporary or "", kept)


class AttemptFiles:
    """The files of one attempt, in the layout of the default logs spec.

    Args:
        run: the folder of the run; empty if there is none.
        attempt: the number of the attempt.
        ranks: the global ranks of this node's workers, by local rank.
        repeat: the index of the start with this attempt number, from 0; None for the last.
    """

    def __init__(
        self, run: str, attempt: int, ranks: Mapping[int, int], repeat: int | None = None
    ) -> None:
        self._folder = _find_attempt(run, attempt, repeat) if run else ""
        self._stacks = os.path.join(run, "stacks") if run else ""
        self._attempt = attempt
        self._ranks = ranks

    def of_worker(self, local_rank: int, name: str) -> str:
        """The path of a file of a worker; empty if there is no folder for the attempt."""
        return os.path.join(self._folder, str(local_rank), name) if self._folder else ""

    def logs(self, failures: Mapping[int, ProcessFailure]) -> Iterator[File]:
        """The last lines of each log.

        Args:
            failures: the workers that failed on any node, by global rank.

        Raises:
            MissingError: there are no logs.
        """
        found = self._find_logs(failures)
        if not found:
            raise MissingError(
                "there are none: --redirects or --tee writes output to files, and a logs spec may "
                "move them at the end"
            )
        max_bytes = min(_MAX_BYTES, _MAX_TOTAL // len(found))
        for name, path in found.items():
            yield _read_end(name, path, max_bytes)

    def error_files(self, failures: Mapping[int, ProcessFailure]) -> Iterator[File]:
        """The error files of the workers.

        Args:
            failures: as for `logs`.

        Raises:
            MissingError: there are none.
        """
        found: dict[str, str] = {}
        for local_rank in self._local_ranks():
            path = self.of_worker(local_rank, _ERROR_FILE)
            if os.path.isfile(path):
                found[f"error-files/{self._name_of(local_rank)}.json"] = path
        others = {
            f"error-files/rank-{rank}.json": failure
            for rank, failure in failures.items()
            if rank >= 0 and failure.has_reply
        }
        max_bytes = min(_MAX_BYTES, _MAX_TOTAL // max(len(found), len(others), 1))
        for name, path in found.items():
            yield _read_start(name, path, max_bytes)
        for name, failure in others.items():
            if name not in found:
                # Removed by now, or on another host; this is what the agent read.
                text = json.dumps(failure.error_file_data, indent=1, default=str)
                yield _cut(name, text.encode(), max_bytes)
        if not found and not others:
            raise MissingError("no worker wrote one")

    def stacks(self) -> Iterator[File]:
        """The stacks of workers that were taken in this attempt.

        Raises:
            MissingError: there are none.
        """
        found = [
            os.path.join(self._stacks, folder, name)
            for folder in _list(self._stacks)
            if folder.startswith(f"attempt_{self._attempt}-")
            for name in _list(os.path.join(self._stacks, folder))
        ]
        if not found:
            raise MissingError("none were taken; use --stacks-on-failure")
        max_bytes = min(_MAX_BYTES, _MAX_TOTAL // len(found))
        for path in found:
            name = f"stacks/{os.path.relpath(path, self._stacks)}"
            yield _read_start(name, path, max_bytes)

    def _find_logs(self, failures: Mapping[int, ProcessFailure]) -> dict[str, str]:
        found = {
            f"logs/{self._name_of(local_rank)}-{name}": self.of_worker(local_rank, name)
            for local_rank in self._local_ranks()
            for name in _LOGS
            if os.path.lexists(self.of_worker(local_rank, name))
        }
        for rank, failure in failures.items():
            # Files of another logs spec are in other folders.
            for path in failure.log_files:
                if path not in found.values() and os.path.isfile(path):
                    name = _ODD.sub("_", os.path.basename(path))
                    found.setdefault(f"logs/rank-{rank}-{name}", path)
        return found

    def _local_ranks(self) -> list[int]:
        return sorted(int(name) for name in _list(self._folder) if name.isdecimal())

    def _name_of(self, local_rank: int) -> str:
        rank = self._ranks.get(local_rank)
        return f"local-rank-{local_rank}" if rank is None else f"rank-{rank}"


def _find_attempt(run: str, attempt: int, repeat: int | None) -> str:
    numbers = [
        int(match[2] or 0)
        for match in map(_ATTEMPT.fullmatch, _list(run))
        if match and int(match[1]) == attempt
    ]
    if not numbers:
        return ""
    which = repeat if repeat in numbers else max(numbers)
    return os.path.join(run, f"attempt_{attempt}.{which}" if which else f"attempt_{attempt}")


def _list(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder)) if folder else []
    except OSError:
        return []


def _cut(name: str, data: bytes, max_bytes: int) -> File:
    is_cut = len(data) > max_bytes
    return File(name, data[:max_bytes], f"the first {max_bytes} bytes" if is_cut else "")


def _read_start(name: str, path: str, max_bytes: int) -> File:
    try:
        return _cut(name, read_start(path, max_bytes + 1), max_bytes)
    except OSError as error:
        return _unreadable(name, error)


def _read_end(name: str, path: str, max_bytes: int) -> File:
    try:
        return File(name, *read_last_lines(path, LINES, max_bytes))
    except OSError as error:
        return _unreadable(name, error)


def _unreadable(name: str, error: OSError) -> File:
    return File(name, b"", f"cannot be read: {error.strerror or error}")


def read_start(path: str, max_bytes: int) -> bytes:
    """Read the first `max_bytes` bytes of a file.

    Raises:
        OSError: it cannot be read, or is not a regular file.
    """
    with _open(path) as file:
        return file.read(max_bytes)


def read_last_lines(path: str, lines: int, max_bytes: int) -> tuple[bytes, str]:
    """Read the last lines of a log; also return a remark on what was left out.

    The older parts of a rotated log are `<path>.1`, `<path>.2` and so on.

    Args:
        path: the file.
        lines: the maximum number of lines.
        max_bytes: the maximum number of bytes.

    Raises:
        OSError: it cannot be read, or is not a regular file.
    """
    size = taken = newlines = 0
    blocks: list[bytes] = []
    for file in _open_all(path):
        with file:
            begin = file.seek(0, os.SEEK_END)
            size += begin
            while begin > 0 and taken < max_bytes and newlines <= lines:
                end, begin = begin, max(begin - min(_BLOCK, max_bytes - taken), 0)
                file.seek(begin)
                # Returns less if the file has shrunk meanwhile.
                blocks.insert(0, file.read(end - begin))
                taken += end - begin
                newlines += blocks[0].count(b"\n")
    data = b"".join(blocks)
    if taken < size and newlines <= lines:
        # The byte limit was reached: drop the incomplete first line, unless it is the only one.
        data = data[data.find(b"\n", 0, len(data) - 1) + 1 :]
    end = len(data) - data.endswith(b"\n")
    for _ in range(lines):
        end = data.rfind(b"\n", 0, end)
        if end < 0:
            break
    else:
        data = data[end + 1 :]
    left_out = size - len(data)
    if left_out <= 0:
        return data, ""
    return data, f"the end; {left_out} bytes before it are left out"


def _open_all(path: str) -> Iterator[BinaryIO]:
    yield _open(path)
    for number in itertools.count(1):
        try:
            older = _open(f"{path}.{number}")
        except OSError:
            return
        yield older


def _open(path: str) -> BinaryIO:
    # Open neither a named pipe, which would block, nor a link to another file.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"{path!r} is not a regular file")
    return open(fd, "rb")
