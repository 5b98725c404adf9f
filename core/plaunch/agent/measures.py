"""torchrun's metrics, made from the moments of an agent."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from plaunch.agent import moments
from plaunch.metrics import put_metric

if TYPE_CHECKING:
    from plaunch.agent.worker import GroupInfo, RunResult


class MetricRecorder:
    """Turns moments into numbers of the group `torchelastic`; the names are torchrun's.

    The state of the workers and the restarts that are left come with each change of state, where
    torchrun repeats them at each poll.
    """

    def __init__(self) -> None:
        self._began = time.time()

    def __call__(self, moment: moments.Moment) -> None:
        """Report what `moment` amounts to."""
        if isinstance(moment, moments.StateChanged):
            role, group = moment.group.role, moment.group
            put_metric(f"workers.{role}.remaining_restarts", group.max_restarts - group.attempt)
            put_metric(f"workers.{role}.{moment.new.value.lower()}", 1)
        elif isinstance(moment, moments.AfterRendezvous):
            put_metric("SimpleElasticAgent._rendezvous.success", 1)
            put_metric("SimpleElasticAgent._rendezvous.duration.ms", int(moment.duration * 1000))
        elif isinstance(moment, moments.AgentFinished):
            self._finish(moment.group, moment.result)

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
