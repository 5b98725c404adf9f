"""torchrun's metrics, made from the events of a launch.

A launch through `plaunch_torchrun` reports them once `elastic.metrics.configure` has been called.
Elsewhere this module is named as a plugin: `plugins=[plaunch_torchrun.measures]`, or `-p
plaunch_torchrun.measures`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.plugin import hookimpl

from plaunch_torchrun.elastic.metrics import CAME_TO_A_RESULT, put_metric

if TYPE_CHECKING:
    from plaunch.agent import Control, Extension, RunResult
    from plaunch.events import Event
    from plaunch.plugin import PluginContext


@hookimpl
def plaunch_extensions(context: PluginContext) -> list[Extension]:
    """Contribute what reports them."""
    return [MetricRecorder(str(context.role), int(str(context.settings["max_restarts"])))]


class MetricRecorder:
    """Turns events into numbers of the group `torchelastic`; the names are torchrun's.

    The state of the workers and the restarts that are left come with each change of state, where
    torchrun repeats them at each poll.

    Args:
        role: the name of the workers.
        max_restarts: how many restarts there are.
    """

    def __init__(self, role: str, max_restarts: int) -> None:
        self._prefix = f"workers.{role}"
        self._max_restarts = max_restarts

    def start(self, control: Control) -> None:
        """Do nothing before the first event."""

    def stop(self, result: RunResult | None) -> None:
        """Do nothing: the last event has everything."""

    def handle(self, event: Event) -> None:
        """Report what `event` amounts to."""
        told = event.metadata
        left = self._max_restarts - int(told["attempt"] or 0)
        if event.name == "plaunch.state.changed":
            put_metric(f"{self._prefix}.remaining_restarts", left)
            put_metric(f"{self._prefix}.{str(told['new']).lower()}", 1)
        elif event.name == "plaunch.rendezvous.completed":
            _call("SimpleElasticAgent._rendezvous", "success", told["duration"])
        elif event.name == "plaunch.workers.started":
            _call("LocalElasticAgent._start_workers", "success", told["duration"])
        elif event.name == "plaunch.launcher.finished":
            self._finish(str(told["outcome"]), told["seconds_total"], left)

    def _finish(self, outcome: str, seconds: object, left: int) -> None:
        has_result = outcome in CAME_TO_A_RESULT
        _call("SimpleElasticAgent.run", "success" if has_result else "failure", seconds)
        if not has_result:  # torchrun counts no runs that ended otherwise
            return
        word = "failed" if outcome == "failed" else "success"
        retries = "no_retries" if left == self._max_restarts else "with_retries"
        spent = 100 - 100 * (left + 1) / (self._max_restarts + 1)
        put_metric(f"{self._prefix}.flakiness", 100 if word == "failed" else int(spent))
        put_metric(f"{self._prefix}.run_total", 1)
        for end in ("success", "failed"):
            for tries in ("with_retries", "no_retries"):
                value = int(end == word and tries == retries)
                put_metric(f"{self._prefix}.run_{end}_{tries}", value)


def _call(name: str, outcome: str, seconds: object) -> None:
    """Report how a method of torchrun's has ended, as its `prof` does."""
    put_metric(f"{name}.{outcome}", 1)
    if isinstance(seconds, (int, float)):
        put_metric(f"{name}.duration.ms", int(seconds * 1000))
