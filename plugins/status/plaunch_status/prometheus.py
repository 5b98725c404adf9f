"""The metrics of a launcher for Prometheus; the only module that needs its client."""

from __future__ import annotations

import time
from itertools import accumulate
from typing import TYPE_CHECKING

from plaunch import __version__
from plaunch.agent import WorkerState
from plaunch_events import PHASES
from prometheus_client.core import (  # noqa: TID253 - loaded on demand
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.exposition import generate_latest  # noqa: TID253
from prometheus_client.registry import Collector, CollectorRegistry  # noqa: TID253

from plaunch_status.counters import BOUNDS
from plaunch_status.page import Page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from plaunch.agent import Progress, Snapshot
    from plaunch_events import LauncherStatus
    from prometheus_client.metrics_core import Metric

    from plaunch_status.counters import Counters

_Labels = tuple[str, ...]

_GAUGES = (
    ("round", "plaunch_round", "Round that this node is in, counted from 0."),
    ("attempt", "plaunch_attempt", "Failures of the job that were followed by a restart."),
    (
        "max_restarts",
        "plaunch_max_restarts",
        "Failures that may be followed by a restart.",
    ),
    ("world_size", "plaunch_world_size", "Workers of the job in this round."),
    ("group_world_size", "plaunch_nodes", "Nodes of the job in this round."),
    ("group_rank", "plaunch_group_rank", "Rank of this node."),
    ("local_world_size", "plaunch_local_world_size", "Workers of this node."),
)
_PROGRESS: tuple[tuple[str, str, Callable[[Progress], float | None]], ...] = (
    ("plaunch_worker_step", "Step that the worker reported last.", lambda one: one.step),
    ("plaunch_worker_total_steps", "Steps in total.", lambda one: one.total),
    ("plaunch_worker_steps_per_second", "Recent steps per second.", lambda one: one.rate),
    ("plaunch_worker_seconds_left", "Seconds until the last step.", lambda one: one.seconds_left),
)
_KIND = "text/plain; version=0.0.4; charset=utf-8"  # the format of every version of the client
_WORKER_STATES = ("running", "succeeded", "failed", "stopped")


class _Families(Collector):
    """Returns given metrics."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Return the metrics."""
        return self._families


def find_families(
    status: LauncherStatus, counters: Counters, snapshot: Snapshot, *, started: float
) -> list[Metric]:
    """Create all metric families, including those without values; quick, called under a lock."""
    return [
        *_agent(status, not snapshot.overdue, started),
        *_rounds(status, counters),
        *_workers(status, counters),
        *_progress(snapshot),
        *_streams(snapshot, counters),
    ]


def metrics_page(families: list[Metric]) -> Page:
    """Create the page `/metrics`, without metrics of other parts of the process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))
    return Page(generate_latest(registry), kind=_KIND)


def _agent(status: LauncherStatus, is_alive: bool, started: float) -> Iterator[Metric]:
    facts, phase = status.facts, status.history.phase
    names = ("run_id", "role", "host", "backend")
    info = InfoMetricFamily("plaunch", "What this launcher runs.")
    info.add_metric((), {"version": __version__, **{n: str(facts.get(n) or "") for n in names}})
    yield info
    yield _gauge(
        "plaunch_start_time_seconds",
        "When the launch began, in seconds since the epoch.",
        started,
    )
    yield _gauge("plaunch_alive", "Whether the agent's loop runs.", is_alive)
    for key, name, text in _GAUGES:
        number = facts.get(key)
        if number is not None and number >= 0:
            yield _gauge(name, text, number)
    phases = GaugeMetricFamily("plaunch_phase", "Current state of the agent: 1.", labels=("phase",))
    for name in PHASES:
        phases.add_metric((name,), name == phase)
    yield phases
    states = GaugeMetricFamily(
        "plaunch_group_state", "The state of the worker group: 1.", labels=("state",)
    )
    for state in WorkerState:
        states.add_metric((state.value,), state.value == status.group_state)
    yield states


def _rounds(status: LauncherStatus, counters: Counters) -> Iterator[Metric]:
    yield _counter("plaunch_rounds", "Rounds that were complete.", counters.rounds)
    yield _counter(
        "plaunch_rendezvous_failures", "Rounds that were not complete.", counters.failed_rendezvous
    )
    yield _counters(
        "plaunch_restarts",
        "Rounds after the first, by what ended the one before.",
        ("cause",),
        (((cause,), count) for cause, count in counters.restarts.items()),
    )
    yield _counters(
        "plaunch_restart_seconds",
        "Seconds that restarts of this node's workers took, from the cause until all run again.",
        ("part",),
        (((part,), seconds) for part, seconds in counters.restart_seconds.items()),
    )
    yield _counters(
        "plaunch_membership_changes",
        "Nodes that joined, left or were lost, and other changes of the job.",
        ("kind",),
        (((kind,), count) for kind, count in counters.membership.items()),
    )
    histogram = HistogramMetricFamily(
        "plaunch_phase_duration_seconds",
        "How long completed phases took.",
        labels=("phase",),
    )
    for name, durations in counters.phases.items():
        counts = accumulate(durations.buckets)
        bounds = [*map(str, BOUNDS), "+Inf"]
        histogram.add_metric(
            (name,), list(zip(bounds, counts, strict=True)), sum_value=durations.sum
        )
    yield histogram
    spent = GaugeMetricFamily(
        "plaunch_spent_seconds",
        "Where the time of the run went until now.",
        labels=("on",),
    )
    for name, seconds in status.history.account.seconds_until(time.monotonic()).items():
        if name != "total":
            spent.add_metric((name,), seconds)
    yield spent


def _workers(status: LauncherStatus, counters: Counters) -> Iterator[Metric]:
    states = [worker.state for worker in status.history.round.workers.values()]
    workers = GaugeMetricFamily(
        "plaunch_workers", "Workers of this node in its round.", labels=("state",)
    )
    for state in _WORKER_STATES:
        workers.add_metric((state,), states.count(state))
    yield workers
    yield _counters(
        "plaunch_worker_exits",
        "Workers of this node that ended, with an exit code or by a signal.",
        ("state", "exit_code", "signal"),
        counters.exits.items(),
    )
    yield _counters(
        "plaunch_signals_received",
        "Signals that the launcher received.",
        ("signal", "action"),
        counters.signals.items(),
    )


def _progress(snapshot: Snapshot) -> Iterator[Metric]:
    for name, text, read in _PROGRESS:
        family = GaugeMetricFamily(name, text, labels=("global_rank",))
        for rank, progress in sorted(snapshot.progress.items()):
            value = read(progress)
            if value is not None:
                family.add_metric((str(rank),), value)
        yield family


def _streams(snapshot: Snapshot, counters: Counters) -> Iterator[Metric]:
    output = snapshot.output
    yield _counter("plaunch_tee_bytes", "Bytes of output read from workers.", output.read_bytes)
    yield _gauge(
        "plaunch_tee_lag_bytes",
        "Bytes of output that wait for the console or a sink.",
        output.lag_bytes,
    )
    yield _counter(
        "plaunch_tee_dropped_lines",
        "Lines of output dropped because the console, a sink or the disk was slow or full.",
        output.dropped_lines,
    )
    yield _counter("plaunch_events", "Events of this agent.", counters.events)
    yield _counters(
        "plaunch_events_dropped",
        "Events that a handler was too slow for or failed on.",
        ("handler",),
        (((handler,), count) for handler, count in snapshot.dropped.items()),
    )


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _counters(
    name: str, text: str, labels: _Labels, values: Iterable[tuple[_Labels, float]]
) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for key, value in values:
        family.add_metric(key, value)
    return family
