"""Reads what workers that run have written about an exception, and where some of them are."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, NamedTuple

from plaunch.process.components import ExitPlace
from plaunch.process.proc import read_proc
from plaunch.process.streams import last_lines, traceback_time

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from plaunch.process.components import FindPlaces
    from plaunch.process.outcomes import WorkerOutcomes
    from plaunch.process.streams import Streams
    from plaunch.process.watches import HeldProcesses

_log = logging.getLogger("plaunch")

REPORT_AFTER = 10.0  # seconds after which a worker that has not exited is reported
SETTLED = 1.0  # seconds within which most interpreters exit after an exception


class WrittenException(NamedTuple):
    """What a worker that has not exited has written about an exception.

    Args:
        at: when, in seconds since the epoch. That of an error file may be of another clock.
        age: seconds since then when it was found, by the clock of this process.
        is_report: whether it is in the error file, and not only on stderr.
        lines: the last lines of its stderr.
        what: the exception with the user's line; empty if it cannot be parsed.
    """

    at: float
    age: float
    is_report: bool
    lines: list[str]
    what: str


class ExitSigns(NamedTuple):
    """What one look has found, by local rank; nothing if it `has_failed`.

    Args:
        written: what workers have written since the look before.
        places: where those workers are whose places were read.
        holds: what holds these, such as `suspended`; empty for those that nothing holds.
        activity: changes when the main thread of a worker runs; empty if unknown. Has all workers.
    """

    written: Mapping[int, WrittenException]
    places: Mapping[int, ExitPlace]
    holds: Mapping[int, str]
    activity: Mapping[int, bytes]
    has_failed: bool = False


class ExitEvidence:
    """Reads the files, streams and stacks of workers. Its methods may block for seconds.

    Args:
        outcomes: knows the error files.
        streams: have the output of the workers.
        find_places: finds out where workers are; None if nothing does.
        holds: knows what has suspended workers.
        wall_clock: seconds since the epoch.
    """

    def __init__(
        self,
        outcomes: WorkerOutcomes,
        streams: Streams,
        find_places: FindPlaces | None,
        holds: HeldProcesses,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._outcomes = outcomes
        self._streams = streams
        self._find_places = find_places
        self._holds = holds
        self._wall_clock = wall_clock

    def read(
        self,
        pids: Mapping[int, int],
        known: Mapping[int, float],
        wanted: Collection[int],
        spared: Collection[int],
    ) -> ExitSigns:
        """Read what workers have written, and where some of them are; raises nothing.

        Args:
            pids: the process ids of the workers, by local rank.
            known: when they wrote what is known.
            wanted: whose places are read.
            spared: whose places are not read although they have written more.
        """
        try:
            written = {}
            for rank in pids:
                one = self._find_written(rank, known.get(rank))
                if one is not None:
                    written[rank] = one
            settled = {rank for rank, one in written.items() if one.age >= SETTLED}
            chosen = {rank: pids[rank] for rank in sorted({*wanted, *(settled - {*spared})})}
            find = self._find_places
            places = find(chosen) if find is not None and chosen else {}
            activity = {rank: _read_activity(pid) for rank, pid in pids.items()}
            held = self._holds.sample(chosen.values())
            holds = {
                rank: held[pid].how if pid in held else places.get(rank, ExitPlace()).hold
                for rank, pid in chosen.items()
            }
            return ExitSigns(written, places, holds, activity)
        except Exception:  # noqa: BLE001 - a bug here must not cost the job
            _log.debug("workers that do not exit cannot be found", exc_info=True)
            return ExitSigns({}, {}, {}, {}, has_failed=True)

    def _find_written(self, rank: int, known: float | None) -> WrittenException | None:
        """Return what a worker has written about an exception since the last look, if anything."""
        reported_at = self._outcomes.reported_at(rank)
        at = reported_at if reported_at is not None else traceback_time(self._streams, rank)
        if at is None or at == known:
            return None
        # The time of a file may be that of a server's clock.
        age = max(self._wall_clock() - at, 0.0) if reported_at is None else 0.0
        lines = last_lines(self._streams, rank)
        what = self._outcomes.describe_exception(rank, lines)
        if what is None:
            return None
        return WrittenException(at, age, reported_at is not None, lines, what)


def _read_activity(pid: int) -> bytes:
    """How often the main thread of a process has run; changes if it runs. Empty if unknown."""
    lines = read_proc(f"{pid}/status").splitlines()
    return b" ".join(line for line in lines if b"ctxt_switches" in line)
