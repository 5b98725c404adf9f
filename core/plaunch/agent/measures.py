"""torchrun's metrics, made from the notifications of an agent."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from plaunch.agent import notifications
from plaunch.metrics import put_metric

if TYPE_CHECKING:
    from plaunch.agent.worker import GroupInfo, RunResult


class MetricRecorder:
    """Turns notifications into numbers of the group `torchelastic`; the names are torchrun's.

    The state of the workers and the restarts that are left come with each change of state, where
    torchrun repeats them at each poll.
    """

    def __init__(self) -> None:
        self._began = time.time()

    def __call__(self, notification: notifications.Notification) -> None:
        """Report what `notification` amounts to."""
        if isinstance(notification, notifications.StateChanged):
            role, group = notification.group.role, notification.group
            put_metric(f"workers.{role}.remaining_restarts", group.max_restarts - group.attempt)
            put_metric(f"workers.{role}.{notification.new.value.lower()}", 1)
        elif isinstance(notification, notifications.AfterRendezvous):
            put_metric("SimpleElasticAgent._rendezvous.success", 1)
            put_metric(
                "SimpleElasticAgent._rendezvous.duration.ms", int(notification.duration * 1000)
            )
        elif isinstance(notification, notifications.AgentFinished):
            self._finish(notification.group, notification.result)

    def _finish(self, group: GroupInfo, result: RunResult | None) -> None:
        end = "failure" if result is None else "success"
        put_metric(f"SimpleElasticAgent.run.{end}", 1)
        put_metric("SimpleElasticAgent.run.duration.ms", int((time.time() - self._began) * 1000))
        if result is None:  # torchrun counts no runs that ended otherwise
            return
        word = "failed" if result.is_failed() else "success"
        retries = "with_retries" if group.attempt else "no_retries"
        prefix = f"workers.{group.role}"
        left = group.max_restarts - group.attempt
        spent = 100 - 100 * (left + 1) / (group.max_restarts + 1)
        put_metric(f"{prefix}.flakiness", 100 if result.is_failed() else int(spent))
        put_metric(f"{prefix}.run_total", 1)
        for outcome in ("success", "failed"):
            for tries in ("with_retries", "no_retries"):
                value = int(outcome == word and tries == retries)
                put_metric(f"{prefix}.run_{outcome}_{tries}", value)
