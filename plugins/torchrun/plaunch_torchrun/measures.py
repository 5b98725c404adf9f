"""torchrun's metrics, made from the events of a launch.

A launch through `plaunch_torchrun` reports them once `elastic.metrics.configure` has been called.
Otherwise, select this module as a plugin: `plugins=[plaunch_torchrun.measures]`, or `-p
plaunch_torchrun.measures`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.agent import Extension
from plaunch.plugin import hookimpl

from plaunch_torchrun.elastic.metrics import CAME_TO_A_RESULT, put_metric

if TYPE_CHECKING:
    from plaunch.events import Event
    from plaunch.plugin import PluginContext


@hookimpl
def plaunch_extensions(context: PluginContext) -> list[Extension]:
    """Create the extension that reports the metrics."""
    return [MetricRecorder(str(context.role), int(str(context.settings["max_restarts"])))]


class MetricRecorder(Extension):
    """Converts events to metrics of the group `torchelastic`; the names are torchrun's.

    The state of the workers and the remaining restarts are reported at each change of the state;
    torchrun repeats them at each poll.

    Args:
        role: the name of the workers.
        max_restarts: the maximum number of restarts.
    """

    def __init__(self, role: str, max_restarts: int) -> None:
        self._prefix = f"workers.{role}"
        self._max_restarts = max_restarts

    def handle(self, event: Event) -> None:
        """Report the metrics of an event."""
        metadata = event.metadata
        left = self._max_restarts - int(metadata["attempt"] or 0)
        if event.name == "plaunch.state.changed":
            put_metric(f"{self._prefix}.remaining_restarts", left)
            put_metric(f"{self._prefix}.{str(metadata['new']).lower()}", 1)
        elif event.name == "plaunch.rendezvous.completed":
            _call("SimpleElasticAgent._rendezvous", "success", metadata["duration"])
        elif event.name == "plaunch.workers.started":
            _call("LocalElasticAgent._start_workers", "success", metadata["duration"])
        elif event.name == "plaunch.launcher.finished":
            self._finish(str(metadata["outcome"]), metadata["seconds_total"], left)

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
    """Report the result of a method of torchrun, as its `prof` does."""
    put_metric(f"{name}.{outcome}", 1)
    if isinstance(seconds, (int, float)):
        put_metric(f"{name}.duration.ms", int(seconds * 1000))
