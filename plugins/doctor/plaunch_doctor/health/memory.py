"""The health check `memory`: enough is available, and memory of earlier workers is free again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.doctor import DoctorContext, Finding, Status
from plaunch.numbers import format_bytes

from plaunch_doctor.health.waiting import CheckDeadline
from plaunch_doctor.memory import read_memory
from plaunch_doctor.sizes import read_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch.health import HealthOccasion
    from plaunch.plugin import PluginContext

    from plaunch_doctor.memory import Memory

_WHAT = "memory"
_FLOOR = 0.05  # of the whole; the default
_SLACK = 0.1  # of the whole: loss since the start that is not blamed on workers


class MemoryCheck:
    """Checks the available memory; waits until the memory of earlier workers is free.

    Args:
        context: the launch; the argument is the size that must be available.
        root: where the file system starts; `/` but in tests.
    """

    takes_argument = True

    def __init__(self, context: PluginContext, root: str = "/") -> None:
        argument = context.options.get("argument")
        self._floor = None if argument is None else read_size(argument, _WHAT)
        self._system = DoctorContext(root=root)
        self._at_start: int | None = None  # bytes that were available
        self._deadline = CheckDeadline()

    def check(self, occasion: HealthOccasion) -> Iterator[Finding]:
        """Check the memory, repeatedly while there is too little."""
        self._deadline.begin(occasion)
        memory = read_memory(self._system)
        while memory is not None and self._trouble(memory) and self._deadline.pause():
            memory = read_memory(self._system)
        if memory is None:
            yield Finding(Status.OK, _WHAT, "the system does not report how much is available")
            return
        said = f"{format_bytes(memory.available)} available of {format_bytes(memory.whole)}"
        trouble = self._trouble(memory)
        if self._at_start is None:
            self._at_start = memory.available
        if trouble:
            yield Finding(
                Status.PROBLEM,
                _WHAT,
                f"{said}, {trouble}",
                "end what uses it: processes that workers left behind, files in /dev/shm",
            )
        else:
            yield Finding(Status.OK, _WHAT, said)

    def close(self) -> None:
        """Stop waiting."""
        self._deadline.end()

    def _trouble(self, memory: Memory) -> str:
        floor = int(memory.whole * _FLOOR) if self._floor is None else self._floor
        if memory.available < floor:
            return f"less than {format_bytes(floor)}"
        gone = 0 if self._at_start is None else self._at_start - memory.available
        if gone > memory.whole * _SLACK:
            return f"{format_bytes(gone)} less than at the start"
        return ""
