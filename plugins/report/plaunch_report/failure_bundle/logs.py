"""The files of an attempt's workers: their logs, and their error files."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, NamedTuple

from plaunch_report.failure_bundle.gathering import File, MissingError
from plaunch_report.failure_bundle.reading import read_last_lines, read_start

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from plaunch.process import LogsSpecs, ProcessFailure

LINES = 1000  # of a log
_MOST = 1 << 20  # bytes of a log, and of an error file
_MOST_OF_ALL = 16 << 20  # bytes of all logs, and of all error files
_LOGS = ("stdout.log", "stderr.log")
_ODD = re.compile(r"[^\w.-]+", re.ASCII)
_ATTEMPT = re.compile(r"attempt_(\d+)(?:\.(\d+))?")
_ERROR_FILE = "error.json"


class Folders(NamedTuple):
    """Where a launch has its files.

    Args:
        run: where they are; empty if there are none.
        kept: the same, if they are still there after the launch.
    """

    run: str
    kept: str


def find_folders(specs: LogsSpecs | None, run_id: str) -> Folders:
    """Ask a logs spec, which may be one for torchrun, where its files are.

    Raises:
        LogDirectoryError: its folder cannot be created.
    """
    create_run_dir = getattr(specs, "create_run_dir", None)
    path = create_run_dir(run_id) if create_run_dir is not None else None
    if path:
        return Folders(path, path)
    root = getattr(specs, "root_log_dir", None)
    if not root or root == os.devnull:
        return Folders("", "")
    is_kept = root != getattr(specs, "temporary_dir", None)
    return Folders(str(root), str(root) if is_kept else "")


class AttemptFiles:
    """The files of one attempt, where the default logs spec has them.

    Args:
        run: the folder of the run; empty if there is none.
        attempt: the number of the attempt.
        ranks: the global ranks of this node's workers, by local rank.
        repeat: which of several starts with that number it is, from 0; None for the last.
    """

    def __init__(
        self, run: str, attempt: int, ranks: Mapping[int, int], repeat: int | None = None
    ) -> None:
        self._folder = _find_attempt(run, attempt, repeat) if run else ""
        self._stacks = os.path.join(run, "stacks") if run else ""
        self._attempt = attempt
        self._ranks = ranks

    def of_worker(self, local_rank: int, name: str) -> str:
        """Where the file of a worker is; empty if there is no folder for the attempt."""
        return os.path.join(self._folder, str(local_rank), name) if self._folder else ""

    def logs(self, failures: Mapping[int, ProcessFailure]) -> Iterator[File]:
        """The last lines of each log.

        Args:
            failures: the workers that failed, by global rank, some of them on other nodes.

        Raises:
            MissingError: there are none.
        """
        found = self._find_logs(failures)
        if not found:
            raise MissingError(
                "there are none: what workers write goes to files with --redirects or --tee, and a "
                "logs spec may have moved those at its end"
            )
        most = min(_MOST, _MOST_OF_ALL // len(found))
        for name, path in found.items():
            yield _file(name, path, most)

    def error_files(self, failures: Mapping[int, ProcessFailure]) -> Iterator[File]:
        """What the workers reported.

        Args:
            failures: as above.

        Raises:
            MissingError: none of them did.
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
        most = min(_MOST, _MOST_OF_ALL // max(len(found), len(others), 1))
        for name, path in found.items():
            try:
                yield _cut(name, read_start(path, most + 1), most)
            except OSError as error:
                yield File(name, b"", f"cannot be read: {error.strerror or error}")
        for name, failure in others.items():
            if name not in found:
                # Gone by now, or on another host; this is what was read of it.
                text = json.dumps(failure.error_file_data, indent=1, default=str)
                yield _cut(name, text.encode(), most)
        if not found and not others:
            raise MissingError("no worker wrote one")

    def stacks(self) -> Iterator[File]:
        """Where workers were, each time that somebody looked in this attempt.

        Raises:
            MissingError: nobody did.
        """
        found = [
            os.path.join(self._stacks, folder, name)
            for folder in _list(self._stacks)
            if folder.startswith(f"attempt_{self._attempt}-")
            for name in _list(os.path.join(self._stacks, folder))
        ]
        if not found:
            raise MissingError("nobody looked at them; --stacks-on-failure does")
        most = min(_MOST, _MOST_OF_ALL // len(found))
        for path in found:
            name = f"stacks/{os.path.relpath(path, self._stacks)}"
            try:
                yield _cut(name, read_start(path, most + 1), most)
            except OSError as error:
                yield File(name, b"", f"cannot be read: {error.strerror or error}")

    def _find_logs(self, failures: Mapping[int, ProcessFailure]) -> dict[str, str]:
        found = {
            f"logs/{self._name_of(local_rank)}-{name}": self.of_worker(local_rank, name)
            for local_rank in self._local_ranks()
            for name in _LOGS
            if os.path.lexists(self.of_worker(local_rank, name))
        }
        for rank, failure in failures.items():
            # Of another logs spec, which has its own folders.
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


def _cut(name: str, data: bytes, most: int) -> File:
    return File(name, data[:most], f"the first {most} bytes" if len(data) > most else "")


def _file(name: str, path: str, most: int) -> File:
    try:
        return File(name, *read_last_lines(path, LINES, most))
    except OSError as error:
        return File(name, b"", f"cannot be read: {error.strerror or error}")
