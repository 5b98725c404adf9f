"""Looking at workers that outlive the grace, just before SIGKILL, which comes no later for it."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from typing import TYPE_CHECKING

from plaunch.agent import AgentFinished, BeforeRendezvous, BeforeWorkers, Stopping

from plaunch_hang.stacks.taking import take, timeout_for
from plaunch_hang.stacks.telling import only_alive, tell, workers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plaunch import LaunchConfig
    from plaunch.agent import Notification

    from plaunch_hang.stacks.stack import ProcessStacks

    Take = Callable[..., dict[int, ProcessStacks]]

logger = logging.getLogger("plaunch")

_LAST_WAIT = 1.0  # seconds for what was seen to be told, before the launch ends or goes on
_HEADLINE = "workers that did not end before they got SIGKILL were here:"


class SlowStops:
    """Takes the stacks of workers that are slow to end, shortly before they get SIGKILL.

    Called with the notifications of a launch, on the agent's thread, from the one on that says that
    workers are waited for. It waits for nobody there, but at the end of a stop in which workers
    got SIGKILL, where it has a second. If they end in time after all, nothing is said; if the grace
    is skipped, nothing is taken.

    Args:
        config: the launch, with the grace as `shutdown_timeout`.
        take: looks at processes by rank, within `timeout` seconds.
    """

    def __init__(self, config: LaunchConfig, take: Take = take) -> None:
        self._config = config
        self._take = take
        self._stop: _SlowStop | None = None

    def __call__(self, notification: Notification) -> None:
        """Follow a stop."""
        stop = self._stop
        if isinstance(notification, Stopping):
            step = notification.step
            if step.step == "waiting" and stop is None:
                pids = _of_local_ranks(notification, step.ranks)
                self._begin(pids, step.seconds, notification.group.attempt)
            elif step.step == "killed" and stop is not None:
                stop.was_killed.set()
            elif step.step == "gone" and stop is not None:
                stop.is_over.set()
        elif stop is not None and isinstance(
            notification, (AgentFinished, BeforeRendezvous, BeforeWorkers)
        ):
            self._stop = None
            stop.is_over.set()
            stop.thread.join(_LAST_WAIT)

    def _begin(self, pids: Mapping[int, int], elapsed: float, attempt: int) -> None:
        grace = self._config.shutdown_timeout
        if grace is None or math.isinf(grace) or not pids:
            return
        # As late as is possible: most workers that take long do end.
        lead = min(timeout_for(len(pids)) / 2, grace / 2)
        due = max(grace - lead - elapsed, 0.0)
        stop = _SlowStop(self._config, self._take, pids, attempt, due, lead)
        try:
            stop.thread.start()
        except RuntimeError as error:  # no more threads, or the interpreter is ending
            logger.debug("no stacks of workers that are slow to end: %s", error)
            return
        self._stop = stop


class _SlowStop:
    """A thread for one stop."""

    def __init__(
        self,
        config: LaunchConfig,
        take: Take,
        pids: Mapping[int, int],
        attempt: int,
        due: float,
        lead: float,
    ) -> None:
        self.was_killed = threading.Event()
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self._run, name="plaunch-slow-stop", daemon=True)
        self._config = config
        self._take = take
        self._pids = pids
        self._attempt = attempt
        self._due = due
        self._lead = lead

    def _run(self) -> None:
        # The end of the wait is either the end of the stop, or an early SIGKILL, or the time.
        until = time.monotonic() + self._due
        while (remaining := until - time.monotonic()) > 0 and not self.was_killed.is_set():
            if self.is_over.wait(min(remaining, 0.5)):
                return
        if self.was_killed.is_set():
            return
        stacks = only_alive(self._take(self._pids, timeout=self._lead))
        # It gets no further until SIGKILL has come, or need not come.
        while not (self.was_killed.is_set() or self.is_over.is_set()):
            self.is_over.wait(0.05)
        if self.was_killed.is_set():
            tell(
                stacks,
                _HEADLINE,
                host=os.uname().nodename,
                attempt=self._attempt,
                occasion="sigkill",
                logs_specs=self._config.logs_specs,
                run_id=self._config.run_id,
            )


def _of_local_ranks(notification: Stopping, ranks: tuple[int, ...]) -> dict[int, int]:
    local = {worker.global_rank: worker.local_rank for worker in notification.group.workers}
    pids = workers_of(notification.group)
    return {rank: pid for rank, pid in pids.items() if local[rank] in ranks}
