"""The event handler `jsonl`: one file for each agent, with one JSON object per line."""

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
    """Writes each event at once as one line of JSON, so that the file can be followed.

    The file is the option `path`, or `events/<host>-<pid>.jsonl` in the run's folder below the log
    directory. It is created with the first event.

    A line is written completely or not at all: a line cut by a full disk is truncated again. Events
    that cannot be written are dropped and counted, and writing resumes when there is space. The
    first loss and the total are logged as warnings.

    Args:
        context: the launch. Its options are `path`, `max_bytes` (a number of bytes, or with k, M or
            G; a file that would grow beyond it is renamed to `<path>.1`; by default never) and
            `keep` (the number of renamed files to keep, by default 3).

    Raises:
        UsageError: there is neither a log directory nor a path, or a value is not a number.
    """

    options: Final = frozenset({"path", "max_bytes", "keep"})
    creates_nothing = True

    def __init__(self, context: PluginContext) -> None:
        self._max_bytes = parse_size(context.options.get("max_bytes", "0"))
        self._keep = _count(context.options.get("keep", str(DEFAULT_KEEP)))
        self._path = self._place(context)
        self._fd = -1
        self._size = 0
        self._is_torn = False  # whether the file ends with an incomplete line
        self._dropped = 0

    @property
    def path(self) -> str:
        """The path of the file."""
        return self._path

    def handle(self, event: Event) -> None:
        """Write one event; errors of the file system are counted, not raised."""
        line = event.serialize().encode() + b"\n"
        try:
            self._make_room(len(line))
            self._write(b"\n" + line if self._is_torn else line)
            self._is_torn = False
        except OSError as error:
            self._dropped += 1
            if self._dropped == 1:
                logger.warning(
                    "an event cannot be written to %r: %s; the job continues, and events are "
                    "written again when there is room",
                    self._path,
                    error.strerror or error,
                )

    def close(self) -> None:
        """Log how many events were lost, and close the file."""
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
                    "which no longer exists; give an absolute path"
                ) from None
        if context.log_dir is None:
            raise UsageError(
                "the event handler 'jsonl' needs a place for its file; give --log-dir, or "
                "--event-conf jsonl.path=FILE"
            )
        name = f"{_file_name(context.host)}-{os.getpid()}.jsonl"
        return os.path.join(os.path.abspath(context.run_dir or context.log_dir), "events", name)

    def _make_room(self, length: int) -> None:
        """Open or rotate the file, so that `length` more bytes fit in it."""
        if self._fd >= 0 and self._max_bytes and self._size + length > self._max_bytes:
            self._rotate()
        if self._fd < 0:
            self._open()
            # An earlier launch may have filled this file.
            if self._max_bytes and self._size and self._size + length > self._max_bytes:
                self._rotate()
                self._open()

    def _open(self) -> None:
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        flags = os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        is_file = os.path.isfile(self._path) or not os.path.exists(self._path)
        if not is_file:
            self._max_bytes = 0  # never rename a device or a pipe
        self._fd = os.open(self._path, flags | (os.O_RDWR if is_file else os.O_WRONLY), 0o666)
        self._size = os.fstat(self._fd).st_size
        if self._size:
            # An earlier writer may have been killed within a line.
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
                self._truncate(begin)
            raise

    def _truncate(self, size: int) -> None:
        """Remove an incomplete line."""
        try:
            os.ftruncate(self._fd, size)
            self._size = size
        except OSError:
            self._is_torn = True  # a pipe or a device: the next event starts on a new line

    def _rotate(self) -> None:
        self._close_file()
        if self._keep == 0:
            os.unlink(self._path)
            return
        # Up to the first free number, so that the cost depends on the files that exist.
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


def parse_size(text: str) -> int:
    """Parse the option `max_bytes`: a number of bytes, or with k, M or G.

    Raises:
        UsageError: it has another form.
    """
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
