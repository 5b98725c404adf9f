"""Heartbeats and sections of a worker, as its launcher sees them: numbers in shared memory.

Workers import this through `plaunch.worker`, which has the names; it imports next to nothing. The
variable `PLAUNCH_HEARTBEATS` names a file in memory and this worker's place in it, as
`PATH@OFFSET`. That place has 32 numbers of eight bytes, in the machine's own order, each of which
is written as a whole:

- 0: when the last beat was, in nanoseconds of the monotonic clock
- 1: how many there were
- 2 and 3: the step and the total of the last one that said them, plus 1; 0 if none did
- 4: the longest time between two beats, outside of sections, in nanoseconds
- 5: what the present section may take, in milliseconds; 0 outside of sections, -1 without an end
- 8 to 15: its name, in UTF-8, filled up with zeros

What a worker starts inherits the variable, and beats for it.
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
SIZE = 256  # bytes of one place

_TIME, _COUNT, _STEP, _TOTAL, _LONGEST, _SECTION, _NAME = 0, 1, 2, 3, 4, 5, 8
_NAME_BYTES = 64
_ENDLESS = -1
_MOST = (1 << 63) - 2


class _Process:
    """Where this process writes, and what it forks; None before the first beat."""

    cells: memoryview | None = None
    nowhere = memoryview(bytearray(SIZE)).cast("q")  # which nobody reads


def heartbeat(step: int | None = None, total: int | None = None) -> None:
    """Say that this worker goes on: for `--hang-timeout`, which then counts from here.

    It takes about a microsecond, never fails, and does nothing unless the launcher listens.
    Any thread may call it. A process that the worker has started beats for the worker.

    Args:
        step: which step of the training this is; something else than a whole number from 0 is left
            out.
        total: how many steps there are.
    """
    cells = _Process.cells
    if cells is None:
        cells = _open()
    now = monotonic_ns()
    count = cells[_COUNT]
    if count and not cells[_SECTION]:
        gap = now - cells[_TIME]
        if gap > cells[_LONGEST]:  # noqa: PLR1730 - max() takes longer
            cells[_LONGEST] = gap
    if step is not None:
        cells[_STEP] = step + 1 if type(step) is int and 0 <= step < _MOST else _numbered(step)
    if total is not None:
        cells[_TOTAL] = total + 1 if type(total) is int and 0 <= total < _MOST else _numbered(total)
    cells[_TIME] = now
    cells[_COUNT] = count + 1


class section:  # noqa: N801 - used as a statement: with section(...)
    """A part of the training that may take longer than `--hang-timeout`, for `with`.

    Its beginning and its end are heartbeats. Where it stands in another one, it counts alone.

    Args:
        name: what it is called in messages.
        timeout: what it may take: seconds, or a text such as `20m`; `inf` has no end.

    Raises:
        UsageError: that is no such time; it is a `ValueError`.
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
        """Begin it."""
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
        """End it, however it ends."""
        del kind, error, traceback
        heartbeat()
        cells = _Process.cells or _open()
        cells[_SECTION], name = self._before.pop()
        cells[_NAME : _NAME + _NAME_BYTES // 8] = memoryview(name).cast("q")


def _numbered(value: int) -> int:
    try:
        number = value.__index__()
    except Exception:  # noqa: BLE001 - whatever it is, a training must not end for it
        return 0
    return number + 1 if 0 <= number < _MOST else 0


def _open() -> memoryview:
    """This worker's place; one that nobody reads if there is none, or it cannot be used."""
    value, cells = os.environ.get(VARIABLE), _Process.nowhere
    if value:
        try:
            cells = _map(value)
        except (OSError, ValueError, ImportError) as error:
            import logging  # see `plaunch.worker`

            logging.getLogger("plaunch").debug("heartbeats are not seen: %s", error)
    _Process.cells = cells
    return cells


def _forget() -> None:
    """This process was forked: its variables may become others, as those of a fork server's do."""
    if _Process.cells is _Process.nowhere:
        _Process.cells = None


os.register_at_fork(after_in_child=_forget)


def _map(value: str) -> memoryview:
    """The place that the variable names.

    Raises:
        OSError: it cannot be mapped.
        ValueError: it is none.
    """
    import mmap  # see `plaunch.worker`

    path, _, number = value.rpartition("@")
    offset = int(number)
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        # The launcher may be gone, and its number, and that of its file, be another's.
        if not os.readlink(f"/proc/self/fd/{fd}").startswith(f"/memfd:{FILE_NAME}"):
            raise ValueError(f"{path} is no file of heartbeats")
        if not 0 <= offset <= os.fstat(fd).st_size - SIZE or offset % SIZE:
            raise ValueError(f"{path} has no place {offset}")
        memory = mmap.mmap(fd, offset + SIZE)
    finally:
        os.close(fd)
    return memoryview(memory)[offset : offset + SIZE].cast("q")
