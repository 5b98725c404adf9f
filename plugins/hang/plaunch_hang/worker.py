"""Heartbeats and sections of a worker, written to memory that is shared with its launcher.

Workers import this through `plaunch.worker`; it imports almost nothing. The variable
`PLAUNCH_HEARTBEATS` has the form `PATH@OFFSET`: a memory file, and the slot of this worker in it. A
slot has 32 numbers of eight bytes in native byte order, each of which is written atomically:

- 0: the time of the last heartbeat, in nanoseconds of the monotonic clock
- 1: the number of heartbeats
- 2 and 3: the last reported step and total, plus 1; 0 if none was reported
- 4: the longest time between two heartbeats outside of sections, in nanoseconds
- 5: the time limit of the current section in milliseconds; 0 outside of sections, -1 for no limit
- 8 to 15: its name in UTF-8, padded with zeros

Processes that a worker starts inherit the variable, and their heartbeats count for the worker.
"""

from __future__ import annotations

import os
from time import monotonic_ns

from plaunch.lazy import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["heartbeat", "section"]

VARIABLE = "PLAUNCH_HEARTBEATS"
FILE_NAME = "plaunch-heartbeats"
SIZE = 256  # bytes of one slot

_TIME, _COUNT, _STEP, _TOTAL, _LONGEST, _SECTION, _NAME = 0, 1, 2, 3, 4, 5, 8
_NAME_BYTES = 64
_ENDLESS = -1
_MOST = (1 << 63) - 2


class _Process:
    """The slot that this process and its forks write to; None before the first heartbeat."""

    cells: memoryview | None = None
    nowhere = memoryview(bytearray(SIZE)).cast("q")  # a slot that is never read


def heartbeat(step: int | None = None, total: int | None = None) -> None:
    """Send a heartbeat: this worker is making progress, and `--hang-timeout` starts over.

    It takes about a microsecond, raises nothing, and does nothing without `--hang-timeout`.
    Thread-safe. Heartbeats of processes that the worker has started count for the worker.

    Args:
        step: the current step of the training, from 0; other values are ignored.
        total: the number of steps.
    """
    cells = _Process.cells
    if cells is None:
        cells = _open()
    now = monotonic_ns()
    count = cells[_COUNT]
    if count and not cells[_SECTION]:
        gap = now - cells[_TIME]
        if gap > cells[_LONGEST]:  # noqa: PLR1730 - max() is slower
            cells[_LONGEST] = gap
    if step is not None:
        cells[_STEP] = step + 1 if type(step) is int and 0 <= step < _MOST else _numbered(step)
    if total is not None:
        cells[_TOTAL] = total + 1 if type(total) is int and 0 <= total < _MOST else _numbered(total)
    cells[_TIME] = now
    cells[_COUNT] = count + 1


class section:  # noqa: N801 - used as a statement: with section(...)
    """A context manager for a part of the training that may take longer than `--hang-timeout`.

    Its beginning and its end are heartbeats. Within another section, only the inner limit applies.

    Args:
        name: its name in messages.
        timeout: its time limit: seconds, or a text such as `20m`; `inf` for no limit.

    Raises:
        UsageError: the limit is invalid; it is a `ValueError`.
    """

    def __init__(self, name: str, timeout: float | str) -> None:
        from plaunch.durations import Duration  # see `plaunch.worker`

        rule, where = Duration(may_be_endless=True, has_units=True), "timeout of plaunch.worker"
        if isinstance(timeout, str):
            timeout = rule.read(timeout, f"{where}.section")
        else:
            rule.check(timeout, f"{where}.section")
        self._limit = _ENDLESS if timeout == float("inf") else max(int(timeout * 1000), 1)
        self._name = str(name).encode("utf-8", "replace")[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0")
        self._before: list[tuple[int, bytes]] = []

    def __enter__(self) -> section:
        """Begin the section."""
        heartbeat()
        cells = _Process.cells or _open()
        name = cells[_NAME : _NAME + _NAME_BYTES // 8]
        self._before.append((cells[_SECTION], name.tobytes()))
        name[:] = memoryview(self._name).cast("q")
        cells[_SECTION] = self._limit
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the section, also after an exception."""
        del kind, error, traceback
        heartbeat()
        cells = _Process.cells or _open()
        cells[_SECTION], name = self._before.pop()
        cells[_NAME : _NAME + _NAME_BYTES // 8] = memoryview(name).cast("q")


def _numbered(value: int) -> int:
    try:
        number = value.__index__()
    except Exception:  # noqa: BLE001 - a bad step must not end the training
        return 0
    return number + 1 if 0 <= number < _MOST else 0


def _open() -> memoryview:
    """Map this worker's slot; return an unread one if there is none, or it cannot be mapped."""
    value, cells = os.environ.get(VARIABLE), _Process.nowhere
    if value:
        try:
            cells = _map(value)
        except (OSError, ValueError, ImportError) as error:
            import logging  # see `plaunch.worker`

            logging.getLogger("plaunch").debug("heartbeats are not sent: %s", error)
    _Process.cells = cells
    return cells


def _forget() -> None:
    """After a fork, look for the slot again: a fork server sets the variable of each worker."""
    if _Process.cells is _Process.nowhere:
        _Process.cells = None


os.register_at_fork(after_in_child=_forget)


def _map(value: str) -> memoryview:
    """Map the slot that the variable names.

    Raises:
        OSError: it cannot be mapped.
        ValueError: it is not a slot.
    """
    import mmap  # see `plaunch.worker`

    path, _, number = value.rpartition("@")
    offset = int(number)
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        # The launcher may have ended, and its pid and file descriptor may be reused.
        if not os.readlink(f"/proc/self/fd/{fd}").startswith(f"/memfd:{FILE_NAME}"):
            raise ValueError(f"{path} is not a file of heartbeats")
        if not 0 <= offset <= os.fstat(fd).st_size - SIZE or offset % SIZE:
            raise ValueError(f"{path} has no slot {offset}")
        memory = mmap.mmap(fd, offset + SIZE)
    finally:
        os.close(fd)
    return memoryview(memory)[offset : offset + SIZE].cast("q")
