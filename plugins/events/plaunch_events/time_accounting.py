"""Where the time of a run went, computed from the events of one agent."""

from __future__ import annotations

import enum
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

TIME_CATEGORIES = ("waiting", "starting", "training", "stopping", "showing", "lost")
"""The categories of `TimeAccount`, in the order in which they are shown."""

RESTART_PARTS = ("noticing", "stopping", "waiting", "starting")
"""The parts of a restart, in order; see `RestartAccount`."""


class EventLike(Protocol):
    """What a fold reads of an event: `plaunch.events.Event`, or a record read from a file."""

    @property
    def name(self) -> str:
        """The name of the event; unknown names are ignored."""

    @property
    def timestamp(self) -> float:
        """Seconds since the epoch."""

    @property
    def monotonic(self) -> float:
        """Seconds on the monotonic clock of the launcher's host."""

    @property
    def metadata(self) -> Mapping[str, str | int | float | bool | None]:
        """Plain values by key."""


class LaunchPhase(str, enum.Enum):
    """The phase of a launch, as its status page, its report and its traces name it."""

    STARTING = "starting"
    RENDEZVOUS = "rendezvous"
    PAUSING = "pausing"
    TRAINING = "training"
    LINGERING = "lingering"
    STOPPING = "stopping"
    SHOWING = "showing"


class TimeAccount:
    """Attributes the seconds between events to six categories, which sum to the total.

    - waiting: for other nodes to form a round, for a delayed restart, and at the end, once all
      workers of this node have succeeded;
    - starting: the launcher, and the workers of a complete round; `preloading` is the part of it in
      which workers waited for preloaded modules;
    - training: from all workers started until the first failure, stop or membership change;
    - stopping: from then on until all workers are gone, including up to two seconds in which the
      agent waits for the cause of a failure that is only a consequence;
    - showing: at the end, while a slow console takes the rest of the output;
    - lost: from the end of training until the next round trains. Until then, and if the run ends
      before, this time is counted in the categories above.

    The phase that an event begins lasts until the next event. An event older than the one before it
    adds no time. No clock is read: `note` takes the events of one agent, in order.
    """

    def __init__(self) -> None:
        self._settled = dict.fromkeys(TIME_CATEGORIES, 0.0)
        self._pending = dict.fromkeys(TIME_CATEGORIES, 0.0)  # lost, if another round trains
        self._is_pending = False
        self._phase = LaunchPhase.STARTING
        self._last: float | None = None
        self._restarts = 0
        self._is_over = False
        self.preloading = 0.0  # seconds, also counted in other categories

    @property
    def phase(self) -> LaunchPhase:
        """The phase since the last event."""
        return self._phase

    @property
    def restarts(self) -> int:
        """How many rounds trained after the first one."""
        return self._restarts

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by category (waiting, starting, ..., lost), and their sum, `total`."""
        seconds = {name: self._settled[name] + self._pending[name] for name in TIME_CATEGORIES}
        seconds["total"] = sum(seconds.values())
        return seconds

    def seconds_until(self, monotonic: float) -> dict[str, float]:
        """The same, including the current phase up to `monotonic`; changes nothing."""
        seconds = self.seconds
        if self._last is not None and not self._is_over:
            elapsed = max(monotonic - self._last, 0.0)
            seconds[self._spent_on] += elapsed
            seconds["total"] += elapsed
        return seconds

    @property
    def _spent_on(self) -> str:
        return _NAME_OF.get(self._phase, self._phase.value)

    def note(self, event: EventLike) -> None:
        """Add the next event of the agent."""
        self.advance(event.monotonic)
        self._is_over = event.name == "plaunch.launcher.finished"
        if event.name == "plaunch.preload.completed":
            self.preloading += float(event.metadata.get("duration") or 0)
        phase = _next_phase(self._phase, event.name, event.metadata)
        if phase is self._phase:
            return
        if phase is LaunchPhase.TRAINING:
            self._settle()
        elif self._phase in (LaunchPhase.TRAINING, LaunchPhase.LINGERING):
            # Others may still train while this node lingers.
            self._is_pending = phase is not LaunchPhase.LINGERING
        self._phase = phase

    def advance(self, monotonic: float) -> None:
        """Count the time up to `monotonic`, without an event."""
        if self._last is None:
            self._last = monotonic
        elapsed = max(monotonic - self._last, 0.0)
        self._last += elapsed
        counted = self._pending if self._is_pending else self._settled
        counted[self._spent_on] += elapsed

    def describe(self) -> str:
        """Describe the times in one line; empty if the run took almost no time."""
        seconds = self.seconds
        if seconds["total"] < _TOO_LITTLE:
            return ""
        return describe_times(seconds, self._restarts, self.preloading)

    def _settle(self) -> None:
        """Count the pending time as lost, because another round trains."""
        if self._is_pending:
            self._settled["lost"] += sum(self._pending.values())
            self._pending = dict.fromkeys(TIME_CATEGORIES, 0.0)
            self._is_pending = False
            self._restarts += 1


class RestartAccount:
    """Measures each restart of one agent: the seconds until its workers run again, in four parts.

    - noticing: from the first failure, membership change or restart request until the agent stops
      its workers;
    - stopping: until they are gone and the agent joins the next round, or delays the restart;
    - waiting: until the round is complete;
    - starting: until all workers of this node are started.

    `note` takes the events of one agent, in order.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] | None = None
        """The seconds by part and in `total`, if the last event completed a restart; else None."""
        self._trained_from: float | None = None
        self._marks: dict[str, float] = {}

    def note(self, event: EventLike) -> None:
        """Add the next event of the agent."""
        self.seconds = None
        marks, name, now = self._marks, event.name, event.monotonic
        if name == "plaunch.workers.started":
            if "joined" in marks:
                self.seconds = self._split(now)
            self._trained_from, self._marks = now, {}
        elif name in _WAITS and self._trained_from is not None:
            marks.setdefault("joined", now)
        elif name == "plaunch.rendezvous.completed":
            marks["formed"] = now
        elif _is_trouble(name, event.metadata):
            self.note_trouble(now)
        elif name == "plaunch.state.changed" and event.metadata.get("new") == "STOPPED":
            marks.setdefault("decided", now)

    def note_trouble(self, monotonic: float) -> None:
        """Record that a worker failed at that time; its event follows."""
        if self._trained_from is not None:
            known = self._marks.get("trouble", monotonic)
            self._marks["trouble"] = max(min(known, monotonic), self._trained_from)

    def _split(self, started: float) -> dict[str, float]:
        marks, joined = self._marks, self._marks["joined"]
        trouble = marks.get("trouble", joined)
        decided = marks.get("decided", min(trouble, joined))
        # Trouble reported while the workers are being stopped did not cause the restart.
        times = [min(trouble, decided), decided, joined, marks.get("formed", joined), started]
        times = list(accumulate(times, max))
        parts = [end - begin for begin, end in pairwise(times)]
        return {**dict(zip(RESTART_PARTS, parts, strict=True)), "total": times[-1] - times[0]}


def describe_times(seconds: Mapping[str, float], restarts: int, preloading: float = 0.0) -> str:
    """Describe the seconds by category in one line; those of almost no time are left out."""
    spent = {name: value for name, value in seconds.items() if name != "lost"}
    parts = _parts(spent, TIME_CATEGORIES, _WORDS)
    if preloading >= _TOO_LITTLE:
        parts.append(f"{describe_seconds(preloading)} of all that for preloaded modules")
    if restarts:
        times = "1 restart" if restarts == 1 else f"{restarts} restarts"
        is_short = seconds["lost"] < _TOO_LITTLE
        parts.append(times if is_short else f"{describe_seconds(seconds['lost'])} lost to {times}")
    total = describe_seconds(seconds["total"])
    return f"{total}: {', '.join(parts)}" if parts else total


def describe_restart(seconds: Mapping[str, float]) -> str:
    """Describe in one line how long a restart and its parts took, from a `RestartAccount`."""
    if seconds["total"] < _TOO_LITTLE:
        return f"less than {_TOO_LITTLE:g} s"
    parts = _parts(seconds, RESTART_PARTS, {})
    total = describe_seconds(seconds["total"])
    return f"{total}: {', '.join(parts)}" if parts else total


def _parts(
    seconds: Mapping[str, float], names: Iterable[str], words: Mapping[str, str]
) -> list[str]:
    return [
        f"{describe_seconds(seconds[name])} {words.get(name, name)}"
        for name in names
        if seconds.get(name, 0.0) >= _TOO_LITTLE
    ]


def describe_seconds(seconds: float) -> str:
    """Format a duration: 0.4 s, 3 s, 3 min 20 s, 1 h 12 min, 2 d 3 h."""
    if seconds < 9.95:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return _in_two_units(whole, "min", 60, "s")
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return _in_two_units(minutes, "h", 60, "min")
    return _in_two_units(round(seconds / 3600), "d", 24, "h")


def _in_two_units(count: int, unit: str, size: int, smaller: str) -> str:
    more, rest = divmod(count, size)
    return f"{more} {unit} {rest} {smaller}" if rest else f"{more} {unit}"


_NAME_OF = dict.fromkeys(
    (LaunchPhase.RENDEZVOUS, LaunchPhase.PAUSING, LaunchPhase.LINGERING), "waiting"
)
_WAITS = ("plaunch.restart.delayed", "plaunch.rendezvous.begun")
_TOO_LITTLE = 0.05  # seconds; less would be shown as 0
_WORDS = {"waiting": "waiting for nodes", "showing": "waiting for the console"}
_BEGINS = {
    "plaunch.restart.delayed": LaunchPhase.PAUSING,
    "plaunch.rendezvous.begun": LaunchPhase.RENDEZVOUS,
    "plaunch.rendezvous.completed": LaunchPhase.STARTING,
    "plaunch.rendezvous.failed": LaunchPhase.STOPPING,
    "plaunch.workers.started": LaunchPhase.TRAINING,
    "plaunch.console.awaited": LaunchPhase.SHOWING,
}


def _next_phase(phase: LaunchPhase, name: str, metadata: Mapping[str, object]) -> LaunchPhase:
    if name in _BEGINS:
        return _BEGINS[name]
    if name == "plaunch.signal.received" and metadata.get("action") == "stop":
        return LaunchPhase.STOPPING
    if name == "plaunch.state.changed" and metadata.get("new") == "SUCCEEDED":
        return LaunchPhase.LINGERING if phase is LaunchPhase.TRAINING else phase
    # During a rendezvous, late events of the previous round do not change the phase.
    is_between = phase in (LaunchPhase.RENDEZVOUS, LaunchPhase.PAUSING)
    return LaunchPhase.STOPPING if not is_between and _is_end(name, metadata) else phase


def _is_end(name: str, metadata: Mapping[str, object]) -> bool:
    """Whether this event ends the training of a round."""
    if name == "plaunch.state.changed":
        return metadata.get("old") == "HEALTHY"
    return _is_failure(name, metadata) or name in ("plaunch.restart", "plaunch.stop.step")


def _is_failure(name: str, metadata: Mapping[str, object]) -> bool:
    if name == "plaunch.worker.exited":
        return not metadata.get("stopped") and metadata.get("exit_code") != 0
    return name == "plaunch.failure"


def _is_trouble(name: str, metadata: Mapping[str, object]) -> bool:
    """Whether this event may cause a restart."""
    if name == "plaunch.request.received":
        return metadata.get("kind") == "restart"
    return name == "plaunch.membership.changed" or _is_failure(name, metadata)
