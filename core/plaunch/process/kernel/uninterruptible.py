"""Finds workers in uninterruptible sleep, which not even SIGKILL ends."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from plaunch.durations import PATIENCE
from plaunch.process.kernel.proc import read_state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TIMEOUT_VARIABLE = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"

_LONGEST_PERIOD = 1.0  # seconds between two samples
_SAMPLES_PER_TIMEOUT = 4


class UninterruptibleWatch:
    """Samples whether a worker has been in state D all the time.

    Only the worker itself is sampled, not its children. Every process is in state D briefly, so a
    worker counts as stuck only if all samples during the timeout find it there.

    Args:
        timeout: seconds of uninterruptible sleep after which a worker counts as stuck.
        find_state: the state letter of a process; by default `read_state`.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        timeout: float,
        *,
        find_state: Callable[[int], str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.timeout = timeout
        self._find_state = read_state if find_state is None else find_state
        self._clock = clock
        self._period = min(timeout / _SAMPLES_PER_TIMEOUT, _LONGEST_PERIOD)
        self._looked_at = -math.inf
        self._since: dict[int, float] = {}

    def find_stuck(self, pids: Mapping[int, int]) -> dict[int, float]:
        """The local ranks that are stuck, and for how many seconds.

        Call it often; most calls do nothing.

        Args:
            pids: the process ids of the workers that have not ended, by local rank.
        """
        now = self._clock()
        if now - self._looked_at < self._period:
            return {}
        self._looked_at = now
        asleep = [pid for pid in pids.values() if self._find_state(pid) == "D"]
        self._since = {pid: self._since.get(pid, now) for pid in asleep}
        return {
            rank: now - self._since[pid]
            for rank, pid in pids.items()
            if pid in self._since and now - self._since[pid] >= self.timeout
        }


def uninterruptible_timeout_of(environ: Mapping[str, str]) -> float:
    """The seconds in `TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT`; 0 means no limit.

    A negative number and an empty text mean no limit as well, as in torchrun.

    Raises:
        UsageError: the variable is not a number.
    """
    text = environ.get(TIMEOUT_VARIABLE, "").strip()
    if not text:
        return 0.0
    seconds = PATIENCE.read(text.removeprefix("-"), f"variable {TIMEOUT_VARIABLE}")
    return 0.0 if text.startswith("-") or math.isinf(seconds) else seconds
