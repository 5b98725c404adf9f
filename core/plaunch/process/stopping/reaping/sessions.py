"""The sessions of workers and their descendants, which show the owner of an orphan."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plaunch.process.kernel.processes import Process

_EMPTY = 1.0  # seconds; one that forks and ends is missed by a look, but not by all for so long


class Sessions:
    """Knows sessions by their number as long as no other session can have it.

    The number stays taken while the session has a member, and is free after that. Process groups
    tell nothing more: each is inside one session.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ranks: dict[int, int] = {}
        self._empty_since: dict[int, float] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._ranks

    def add(self, number: int, rank: int) -> None:
        """Record a session that a process of this local rank leads."""
        self._ranks[number] = rank
        self._empty_since.pop(number, None)

    def find_rank(self, process: Process) -> int | None:
        """The local rank to which a process belongs by its session; None if to none."""
        return self._ranks.get(process.session)

    def confirm(self, process: Process) -> None:
        """Know that a session has a member."""
        self._empty_since.pop(process.session, None)

    def forget(self, number: int) -> None:
        """Record that the number now belongs to another program."""
        self._ranks.pop(number, None)
        self._empty_since.pop(number, None)

    def update(self, table: Mapping[int, Process], owners: Mapping[int, int]) -> None:
        """Learn from a look at all processes, of which `owners` are the job's, by local rank."""
        for pid, rank in owners.items():
            if table[pid].session == pid:
                self.add(pid, rank)
        inhabited = {process.session for process in table.values()}.union(owners)
        now = self._clock()
        for number in list(self._ranks):
            if number in table and number not in owners:
                self.forget(number)
            elif number in inhabited:  # or its leader is there, and has still to make it
                self._empty_since.pop(number, None)
            elif now - self._empty_since.setdefault(number, now) >= _EMPTY:
                self.forget(number)
