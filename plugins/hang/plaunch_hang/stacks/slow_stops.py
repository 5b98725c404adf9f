"""Reading the stacks of workers that outlive the grace, shortly before their SIGKILL."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from plaunch.agent import AgentFinished, BeforeRendezvous, BeforeWorkers, Stopping

from plaunch_hang.stacks.files import log_stacks, only_alive, workers_of
from plaunch_hang.stacks.taking import take, timeout_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plaunch.agent import Notification
    from plaunch.plugin import PluginContext

    from plaunch_hang.stacks.stack import ProcessStacks

    Take = Callable[..., dict[int, ProcessStacks]]

logger = logging.getLogger("plaunch")

_LAST_WAIT = 1.0  # seconds for the stacks to be logged, before the launch continues or ends
_HEADLINE = "workers that did not end before they got SIGKILL were here:"


class SlowStops:
    """Reads the stacks of workers that are slow to end, shortly before they get SIGKILL.

    The launch creates it at a stop in which workers do not end at once, and calls it with this and
    all further notifications. It does not block, except for up to a second at the end
    of a stop in which workers got SIGKILL. If the workers end in time, nothing is logged; if the
    grace is skipped, nothing is read. It does not delay SIGKILL.

    Args:
        context: the launch; its grace is the setting `shutdown_timeout`.
        take: reads the stacks of processes by rank, within `timeout` seconds.
    """

    def __init__(self, context: PluginContext, take: Take = take) -> None:
        self._context = context
        self._take = take
        self._stop: _SlowStop | None = None

    def __call__(self, notification: Notification) -> None:
        """Handle a notification."""
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
        grace: Any = self._context.settings["shutdown_timeout"]
        if grace is None or math.isinf(grace) or not pids:
            return
        # As late as possible, because most slow workers still end in time.
        lead = min(timeout_for(len(pids)) / 2, grace / 2)
        due = max(grace - lead - elapsed, 0.0)
        stop = _SlowStop(partial(self._watch, pids, attempt, due, lead))
        try:
            stop.thread.start()
        except RuntimeError as error:  # no more threads, or the interpreter is ending
            logger.debug("no stacks of workers that are slow to end: %s", error)
            return
        self._stop = stop

    def _watch(
        self, pids: Mapping[int, int], attempt: int, due: float, lead: float, stop: _SlowStop
    ) -> None:
        """Read the stacks after `due` seconds, within `lead` seconds; log them after SIGKILL."""
        # Wait for the end of the stop, for an early SIGKILL, or until the stacks are due.
        until = time.monotonic() + due
        while (remaining := until - time.monotonic()) > 0 and not stop.was_killed.is_set():
            if stop.is_over.wait(min(remaining, 0.5)):
                return
        if stop.was_killed.is_set():
            return
        stacks = only_alive(self._take(pids, timeout=lead))
        # Wait until the workers get SIGKILL, or have ended.
        while not (stop.was_killed.is_set() or stop.is_over.is_set()):
            stop.is_over.wait(0.05)
        if stop.was_killed.is_set():
            log_stacks(
                stacks,
                _HEADLINE,
                host=os.uname().nodename,
                attempt=attempt,
                occasion="sigkill",
                logs_specs=self._context.settings["logs_specs"],
                run_id=self._context.run_id,
            )


class _SlowStop:
    """One stop whose workers are slow to end; `watch` is called on its thread."""

    def __init__(self, watch: Callable[[_SlowStop], None]) -> None:
        self.was_killed = threading.Event()
        self.is_over = threading.Event()
        self.thread = threading.Thread(
            target=watch, args=(self,), name="plaunch-slow-stop", daemon=True
        )


def _of_local_ranks(notification: Stopping, ranks: tuple[int, ...]) -> dict[int, int]:
    local = {worker.global_rank: worker.local_rank for worker in notification.group.workers}
    pids = workers_of(notification.group)
    return {rank: pid for rank, pid in pids.items() if local[rank] in ranks}
