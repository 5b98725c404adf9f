"""The event handler for programs: a file of events for each agent, one JSON object in a line."""

from __future__ import annotations

import logging
import os
import re
from typing import TYPE_CHECKING, Final

from plaunch.errors import UsageError
from plaunch.numbers import digits

if TYPE_CHECKING:
    from plaunch.events import Event
    from plaunch.plugin import PluginContext

logger = logging.getLogger("plaunch")

DEFAULT_KEEP = 3
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class JsonlEventHandler:
    """Writes each event as one line of JSON, at once, so that it can be followed while it grows.

    The file is `events/<host>-<pid>.jsonl` in the run's folder below the log directory, or the one
    that the option `path` names. It is created with the first event.

    A line is written whole or not at all: what a full disk has cut is taken back. Events that
    cannot be written are dropped and counted, and when there is room again the next ones follow; a
    warning says so at the first loss and at the end.

    Args:
        context: the launch. Its options are `path`, `max_bytes` (a number, or with k, M or G; a
            file that would grow beyond it is renamed to `<path>.1`, by default never) and `keep`
            (how many renamed files stay, by default 3).

    Raises:
        UsageError: there is neither a log directory nor a path, or a value is not a number.
    """

    options: Final = frozenset({"path", "max_bytes", "keep"})

    def __init__(self, context: PluginContext) -> None:
        self._max_bytes = _size(context.options.get("max_bytes", "0"))
        self._keep = _count(context.options.get("keep", str(DEFAULT_KEEP)))
        self._path = self._place(context)
        self._fd = -1
        self._size = 0
        self._is_torn = False  # the file ends within a line
        self._dropped = 0

    @property
    def path(self) -> str:
        """The file that is written."""
        return self._path

    def handle(self, event: Event) -> None:
        """Write one event; what the file system refuses is counted, and never raised."""
        line = event.serialize().encode() + b"\n"
        try:
            self._make_room(len(line))
            self._write(b"\n" + line if self._is_torn else line)
            self._is_torn = False
        except OSError as error:
            self._dropped += 1
            if self._dropped == 1:
                logger.warning(
                    "an event cannot be written to %r: %s; the job goes on, and events are "
                    "written again when there is room",
                    self._path,
                    error.strerror or error,
                )

    def close(self) -> None:
        """Say how many events were lost, and close the file."""
        if self._dropped:
            logger.warning("%d events are missing in %r", self._dropped, self._path)
        self._close_file()

    def _place(self, context: PluginContext) -> str:
        given = context.options.get("path")
        if given is not None:
            try:
                return os.path.abspath(str(given))
            except FileNotFoundError:
                raise UsageError(
                    f"--event-conf has jsonl.path={given!r}, relative to the current folder, "
                    "which does not exist any more; give a path that begins with /"
                ) from None
        if context.log_dir is None:
            raise UsageError(
                "the event handler 'jsonl' does not know where to write; give --log-dir, or "
                "--event-conf jsonl.path=FILE"
            )
        name = f"{_file_name(context.host)}-{os.getpid()}.jsonl"
        return os.path.join(os.path.abspath(context.run_dir or context.log_dir), "events", name)

    def _make_room(self, length: int) -> None:
        """Have a file open that `length` more bytes may go to."""
        if self._fd >= 0 and self._max_bytes and self._size + length > self._max_bytes:
            self._rotate()
        if self._fd < 0:
            self._open()
            # A file that an earlier launch has filled.
            if self._max_bytes and self._size and self._size + length > self._max_bytes:
                self._rotate()
                self._open()

    def _open(self) -> None:
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        flags = os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        is_file = os.path.isfile(self._path) or not os.path.exists(self._path)
        if not is_file:
            self._max_bytes = 0  # a device or a pipe must stay what it is
        self._fd = os.open(self._path, flags | (os.O_RDWR if is_file else os.O_WRONLY), 0o666)
        self._size = os.fstat(self._fd).st_size
        if self._size:
            # Whoever wrote here before may have been killed within a line.
            self._is_torn = os.pread(self._fd, 1, self._size - 1) != b"\n"

    def _write(self, line: bytes) -> None:
        begin, rest = self._size, line
        try:
            while rest:
                written = os.write(self._fd, rest)
                self._size += written
                rest = rest[written:]
        except OSError:
            if self._size > begin:
                self._take_back(begin)
            raise

    def _take_back(self, size: int) -> None:
        """Cut off the part of a line that was written."""
        try:
            os.ftruncate(self._fd, size)
            self._size = size
        except OSError:
            self._is_torn = True  # a pipe or a device: what follows is kept apart from it

    def _rotate(self) -> None:
        self._close_file()
        if self._keep == 0:
            os.unlink(self._path)
            return
        # Up to the first number that is free, so that it takes as long as there are files.
        last = 1
        while last < self._keep and os.path.exists(f"{self._path}.{last}"):
            last += 1
        for number in range(last - 1, 0, -1):
            os.replace(f"{self._path}.{number}", f"{self._path}.{number + 1}")
        os.replace(self._path, f"{self._path}.1")

    def _close_file(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _file_name(host: str) -> str:
    return "".join(char if char.isalnum() or char in "-_." else "_" for char in host) or "host"


def _size(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,15})([kmg]?)", text.strip().lower())
    if found is None:
        raise UsageError(
            f"--event-conf has jsonl.max_bytes={text!r}; write a number of bytes, as in 10000000, "
            "500k, 64M or 2G"
        )
    return int(found[1]) * _UNITS[found[2]]


def _count(text: str) -> int:
    number = digits(text.strip())
    if number is None:
        raise UsageError(f"--event-conf has jsonl.keep={text!r}; write a number of files")
    return number
