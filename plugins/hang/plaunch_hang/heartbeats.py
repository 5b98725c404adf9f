"""The heartbeats of the workers of a node: their memory, learned timeouts, and steps.

`plaunch_hang.worker` describes the layout of the memory.
"""

from __future__ import annotations

import fcntl
import math
import os
import struct
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from plaunch.agent import Progress
from plaunch.numbers import name_ranks
from plaunch.texts import printable

from plaunch_hang.worker import FILE_NAME, SIZE

if TYPE_CHECKING:
    from collections.abc import Mapping

_PLACE = struct.Struct("=6q16x64s")
_MOST_WORKERS = 1 << 16
UNLEARNED = 1800.0  # seconds, before a timeout is learned
LEAST = 60.0  # seconds; the shortest learned timeout
_TIMES = 5  # the learned timeout is this many times the longest gap between heartbeats
_ENOUGH = 10  # heartbeats from which a timeout is learned
_SAMPLES = 30  # samples over which a rate is computed
_MOST = 4  # steps that are named


class HeartbeatState(NamedTuple):
    """The heartbeats of a worker so far.

    Args:
        number: the number of heartbeats.
        step: the last reported step; -1 if none was reported.
        total: the last reported number of steps; -1 if none was reported.
        longest: the longest time between two heartbeats outside of sections, in seconds.
        section: the time limit of its current section in seconds; 0 if it is in none, negative for
            no limit.
        name: the name of that section.
    """

    number: int = 0
    step: int = -1
    total: int = -1
    longest: float = 0.0
    section: float = 0.0
    name: str = ""


class HeartbeatMemory:
    """A memory file with a slot for each worker; the kernel frees it with its last user.

    Raises:
        OSError: it cannot be created.
    """

    def __init__(self) -> None:
        if not hasattr(os, "memfd_create"):
            raise OSError("this system has no memory files (memfd_create)")
        self._fd = os.memfd_create(FILE_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        # If a process truncated the file, others that map it would get SIGBUS.
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)

    def variable(self, local_rank: int) -> str:
        """Clear the slot of a local rank, and return the value of the worker's variable.

        Raises:
            OSError: there is no memory.
        """
        if not 0 <= local_rank < _MOST_WORKERS:
            raise OSError(f"there is no slot for local rank {local_rank}")
        # Writing allocates the memory, so that the worker's writes cannot fail.
        os.pwrite(self._fd, bytes(SIZE), local_rank * SIZE)
        return f"/proc/{os.getpid()}/fd/{self._fd}@{local_rank * SIZE}"

    def read(self, local_rank: int) -> HeartbeatState:
        """Read the heartbeats of a local rank."""
        data = os.pread(self._fd, _PLACE.size, local_rank * SIZE)
        if len(data) < _PLACE.size:
            return HeartbeatState()
        _, count, step, total, longest, section, name = _PLACE.unpack(data)
        text = name.rstrip(b"\0").decode("utf-8", "replace")
        return HeartbeatState(
            max(count, 0),
            max(step, 0) - 1,
            max(total, 0) - 1,
            max(longest, 0) / 1e9,
            section / 1e3,
            printable(text),
        )

    def close(self) -> None:
        """Close the memory file."""
        os.close(self._fd)


class HangTimeouts:
    """The timeouts of one launch; a learned timeout is kept across restarts.

    Args:
        given: the timeout in seconds, or None to learn it.
    """

    def __init__(self, given: float | None) -> None:
        self._given = given
        self._longest = 0.0  # of all workers and rounds
        self._has_learned = False

    def of(self, beat: HeartbeatState) -> float:
        """The timeout of a worker with these heartbeats; inf in a section without a limit."""
        base = self.outside(beat)
        return math.inf if beat.section < 0 else max(base, beat.section)

    def outside(self, beat: HeartbeatState) -> float:
        """The same, ignoring sections."""
        if self._given is not None:
            return self._given
        if beat.number >= _ENOUGH:
            self._longest, self._has_learned = max(self._longest, beat.longest), True
        if not (beat.number and self._has_learned):
            return UNLEARNED
        return max(_TIMES * self._longest, LEAST)


class StepTracker:
    """Tracks the steps of the workers of one node."""

    def __init__(self) -> None:
        self._pids: Mapping[int, int] = {}
        self._seen: dict[int, deque[tuple[float, int]]] = {}  # by rank: times and steps

    def sample(
        self, now: float, pids: Mapping[int, int], beats: Mapping[int, HeartbeatState]
    ) -> dict[int, Progress]:
        """Take the next sample; return the progress of each worker that reports steps.

        Args:
            now: monotonic seconds.
            pids: the process ids, by global rank; if they change, the rates start over.
            beats: the heartbeats, by global rank.
        """
        if pids != self._pids:
            self._pids, self._seen = dict(pids), {}
        found = {}
        for rank, beat in beats.items():
            if beat.step < 0:
                continue
            seen = self._seen.setdefault(rank, deque(maxlen=_SAMPLES))
            if seen and beat.step < seen[-1][1]:
                seen.clear()  # a new epoch, for example
            seen.append((now, beat.step))
            passed, steps = now - seen[0][0], beat.step - seen[0][1]
            rate = steps / passed if passed > 0 else 0.0
            found[rank] = Progress(beat.step, beat.total if beat.total >= 0 else None, rate)
        return found


def format_steps(progress: Mapping[int, Progress]) -> str:
    """`last step: 3 of 20 (rank 2), 4 of 20 (ranks 0-1,3)`, the least first; empty without any."""
    ranks: dict[tuple[int, str], list[int]] = {}
    for rank, one in progress.items():
        of = "" if one.total is None else f" of {one.total}"
        ranks.setdefault((one.step, of), []).append(rank)
    places = [
        f"{step}{of} ({name_ranks(of_place)})" for (step, of), of_place in sorted(ranks.items())
    ]
    if len(places) > _MOST:
        places = [*places[: _MOST - 1], "...", places[-1]]
    return f"last step: {', '.join(places)}" if places else ""
