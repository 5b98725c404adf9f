"""Signals that are passed on to the workers, which go on: each one once, whoever was told of it.

A scheduler may tell every launcher of a job at once, and each of them tells the others. To a worker
all of that is one notice: a second one would interrupt the save that the first one has begun.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable

logger = logging.getLogger("plaunch")

_APART = 1.0  # seconds; what comes sooner than that after the last one is the same notice


class Notices:
    """Passes signals on, and knows which ones the workers have just got.

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
        """Pass a signal on, and say whether it was; not if the workers have just got it.

        `node` is the name of the node that has received it, if that is another one.
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
        """Know that the workers are new, and have got nothing."""
        self._passed.clear()
