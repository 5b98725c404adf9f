"""From the events of one agent to spans of OpenTelemetry."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from plaunch_events.time_accounting import TimeAccount

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.trace import Span, Tracer
    from plaunch.events import Event

_PHASES = {"lingering": "waiting for nodes", "showing": "waiting for the console"}
_LAUNCH_KEYS = ("run_id", "host", "role", "agent_pid")
# What is a moment of the round that it falls into.
_MOMENTS = frozenset(
    {
        "plaunch.membership.changed",
        "plaunch.rendezvous.failed",
        "plaunch.request.received",
        "plaunch.restart",
        "plaunch.restart.completed",
        "plaunch.signal.received",
        "plaunch.state.changed",
        "plaunch.stop.step",
    }
)


class Spans:
    """Makes spans of the events of one agent, in order.

    `launch` is the whole, `round N` each of its rounds from joining on, within it its phases
    (`rendezvous`, `starting`, `training`, `stopping`, `waiting for nodes`, `waiting for the
    console`) and a span `rank N` for the life of each worker. A failure is an event `exception` of
    its worker's span, or of the launch's if the worker was another node's.

    Args:
        tracer: makes the spans.
        parent: the context that the span of the launch belongs to, if there is one.
    """

    def __init__(self, tracer: Tracer, parent: Any = None) -> None:
        self._tracer = tracer
        self._parent = parent
        self._account = TimeAccount()
        self._launch: Span | None = None
        self._round: Span | None = None
        self._phase: tuple[str, Span] | None = None
        self._workers: dict[int, Span] = {}  # by process id
        self._ended: dict[int, tuple[Span, int]] = {}  # failed, when, and not yet accounted for
        self._last = 0

    def handle(self, event: Event) -> None:
        """Take the next event."""
        told = event.metadata
        now = self._last = max(self._last, int(event.timestamp * 1e9))
        if self._launch is None:
            attributes = {key: told.get(key) for key in _LAUNCH_KEYS}
            self._launch = self._begin("launch", None, now, attributes)
        if event.name == "plaunch.launcher.started":
            self._launch.set_attributes(_attributes(told))
        elif event.name == "plaunch.rendezvous.begun":
            self._end_round(now)
            self._round = self._begin("round", self._launch, now, {})
        elif event.name == "plaunch.rendezvous.completed" and self._round is not None:
            self._round.update_name(f"round {told.get('round')}")
            self._round.set_attributes(_attributes(told))
        self._turn(event, now)
        if event.name == "plaunch.worker.started":
            name = f"rank {told.get('global_rank')}"
            span = self._begin(name, self._round or self._launch, now, told)
            self._workers[_pid(told)] = span
        elif event.name == "plaunch.worker.exited":
            self._worker_exited(told, now)
        elif event.name == "plaunch.failure":
            self._failed(told, now)
        elif event.name in _MOMENTS:
            span = self._round or self._launch
            span.add_event(event.name, _attributes(told), timestamp=now)
        elif event.name == "plaunch.launcher.finished":
            self._finish(told, now)

    def close(self) -> None:
        """End what is open: the launcher has ended without an event."""
        if self._launch is not None:
            _fail(self._launch, "the launcher ended without an event")
            self._end_all(self._last)

    def _turn(self, event: Event, now: int) -> None:
        """Begin and end phases."""
        self._account.note(event)
        name = self._account.phase.value
        name = _PHASES.get(name, name)
        if self._round is None:
            return  # before the first round, the launch as a whole is what starts
        if self._phase is not None and self._phase[0] == name:
            return
        self._end_phase(now)
        self._phase = (name, self._begin(name, self._round, now, {}))

    def _worker_exited(self, told: Mapping[str, Any], now: int) -> None:
        span = self._workers.pop(_pid(told), None)
        if span is None:
            return
        span.set_attributes(_attributes(told))
        if told.get("stopped") or told.get("exit_code") == 0:
            span.end(now)
            return
        _fail(span, _exit(told))
        self._ended[_pid(told)] = span, now

    def _failed(self, told: Mapping[str, Any], now: int) -> None:
        attributes = _attributes(told)
        attributes["exception.type"] = str(told.get("signal_name") or "plaunch.WorkerFailure")
        attributes["exception.message"] = str(told.get("message") or _exit(told))
        attributes["exception.stacktrace"] = str(told.get("last_lines") or "")
        if told.get("failed_host") == told.get("host") and _pid(told) in self._ended:
            span, end = self._ended.pop(_pid(told))
            # An event of a span cannot be later than its end.
            span.add_event("exception", attributes, timestamp=end)
            span.end(end)
        elif self._launch is not None:
            self._launch.add_event("exception", attributes, timestamp=now)

    def _finish(self, told: Mapping[str, Any], now: int) -> None:
        if self._launch is None:
            return
        self._launch.set_attributes(_attributes(told))
        if told.get("outcome") in ("succeeded", "not_needed"):
            from opentelemetry.trace import StatusCode

            self._launch.set_status(StatusCode.OK)
        else:
            _fail(self._launch, f"{told.get('outcome')}: {told.get('reason')}")
        self._end_all(now)

    def _end_all(self, now: int) -> None:
        self._end_round(now)
        if self._launch is not None:
            self._launch.end(now)
            self._launch = None

    def _end_round(self, now: int) -> None:
        for span, end in self._ended.values():
            span.end(end)
        self._ended.clear()
        for span in self._workers.values():
            span.end(now)
        self._workers.clear()
        self._end_phase(now)
        if self._round is not None:
            self._round.end(now)
            self._round = None

    def _end_phase(self, now: int) -> None:
        if self._phase is not None:
            self._phase[1].end(now)
            self._phase = None

    def _begin(
        self, name: str, parent: Span | None, now: int, attributes: Mapping[str, Any]
    ) -> Span:
        from opentelemetry.trace import set_span_in_context

        context = self._parent if parent is None else set_span_in_context(parent)
        return self._tracer.start_span(
            name, context=context, start_time=now, attributes=_attributes(attributes)
        )


def trace_id_of(run_id: str) -> int:
    """The id of a run's trace, the same on all nodes without communication."""
    digest = hashlib.sha256(f"plaunch run {run_id}".encode()).digest()
    return int.from_bytes(digest[:16], "big") or 1


def _attributes(told: Mapping[str, Any]) -> dict[str, Any]:
    return {f"plaunch.{key}": value for key, value in told.items() if value is not None}


def _pid(told: Mapping[str, Any]) -> int:
    pid = told.get("worker_pid")
    return pid if isinstance(pid, int) else -1


def _exit(told: Mapping[str, Any]) -> str:
    name = told.get("signal_name")
    return f"killed by {name}" if name else f"exit code {told.get('exit_code')}"


def _fail(span: Span, description: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR, description))
