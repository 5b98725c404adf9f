"""The sessions of workers and their descendants, by which the owner of an orphan is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plaunch.process.kernel.processes import Process

_EMPTY = 1.0  # seconds; one look may miss a process that forks and exits, but not all looks


class SessionOwners:
    """The local ranks of sessions, as long as the ids of the sessions cannot have been reused.

    An id is reserved while the session has a member. Process groups need no record: each is inside
    one session.

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
        """The local rank of a process by its session; None if the session is unknown."""
        return self._ranks.get(process.session)

    def confirm(self, process: Process) -> None:
        """Record that the session of a process has a member."""
        self._empty_since.pop(process.session, None)

    def forget(self, number: int) -> None:
        """Record that the id now belongs to another program."""
        self._ranks.pop(number, None)
        self._empty_since.pop(number, None)

    def update(self, table: Mapping[int, Process], owners: Mapping[int, int]) -> None:
        """Update from a table of all processes; `owners` has the ranks of the job's processes."""
        for pid, rank in owners.items():
            if table[pid].session == pid:
                self.add(pid, rank)
        inhabited = {process.session for process in table.values()}.union(owners)
        now = self._clock()
        for number in list(self._ranks):
            if number in table and number not in owners:
                self.forget(number)
            elif number in inhabited:  # or its leader runs, and has not made the session yet
                self._empty_since.pop(number, None)
            elif now - self._empty_since.setdefault(number, now) >= _EMPTY:
                self.forget(number)
