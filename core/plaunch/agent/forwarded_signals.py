"""Signals that are passed on to the workers while the job continues.

A scheduler may send a signal to every launcher of a job, and each of them forwards it to all
others. Workers get it once: a second one would interrupt the save that the first one has begun.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable

logger = logging.getLogger("plaunch")

_APART = 1.0  # seconds; the same signal again within this time is ignored


class ForwardedSignals:
    """Passes signals on to the workers, each once.

    Args:
        signal_workers: passes a signal on to the workers of this node.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        signal_workers: Callable[[signal.Signals], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._signal_workers = signal_workers
        self._clock = clock
        self._passed: dict[signal.Signals, float] = {}  # when each was passed on last

    def pass_on(self, signum: signal.Signals, node: str = "") -> bool:
        """Pass a signal on to the workers, unless they have just got it.

        Args:
            signum: the signal.
            node: the node that has received it; empty for this one.

        Returns:
            Whether it was passed on.
        """
        where = f" on node {node}" if node else ""
        now = self._clock()
        last = self._passed.get(signum)
        if last is not None and now - last < _APART:
            logger.log(
                logging.DEBUG if node else logging.INFO,
                "%s received%s within a second of the last; the workers have it already",
                signum.name,
                where,
            )
            return False
        self._passed[signum] = now
        logger.warning("%s received%s; it is passed on and the job goes on", signum.name, where)
        self._signal_workers(signum)
        return True

    def forget(self) -> None:
        """Forget all signals, since new workers have got none."""
        self._passed.clear()
