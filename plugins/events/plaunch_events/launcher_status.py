"""The status of a launcher, as plain values: what its status page and control socket answer."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from plaunch import __version__

from plaunch_events.launcher_history import LauncherHistory, WorkerRun
from plaunch_events.time_accounting import LaunchPhase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch.agent import Progress
    from plaunch.events import Event
    from plaunch.process import Held

SCHEMA_VERSION = 1

_WAITING = (LaunchPhase.RENDEZVOUS.value, LaunchPhase.PAUSING.value)


class LauncherStatus:
    """Describes the current state of a launcher, from its events.

    The description has no failure message, no output and no setting that might hold a secret, so it
    may be shown to everyone who can reach a port.

    Args:
        run_id: the id of the job.
        role: the name of the workers.
    """

    def __init__(self, run_id: str, role: str) -> None:
        self.history: LauncherHistory[Event] = LauncherHistory()
        self.facts: dict[str, Any] = {"run_id": run_id, "role": role, "host": os.uname().nodename}
        self.group_state = "INIT"  # a `plaunch.agent.WorkerState`
        self._created = time.time()
        self._stop: dict[str, Any] | None = None

    def note(self, event: Event) -> None:
        """Add the next event."""
        metadata, phase = event.metadata, self.history.phase
        self.facts.update((key, metadata[key]) for key in _KEPT if metadata.get(key) is not None)
        self.history.note(event)
        if self.history.phase != phase:
            self._stop = None
        if event.name == "plaunch.state.changed":
            self.group_state = str(metadata["new"])
        elif event.name == "plaunch.stop.step":
            self._stop = {key: metadata.get(key) for key in ("step", "signal_name", "seconds")}

    def describe(
        self,
        waiting_for: str | None,
        overdue: float,
        progress: Mapping[int, Progress] | None = None,
        held: Mapping[int, Held] | None = None,
        notes: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Return the status as plain values for JSON.

        Args:
            waiting_for: what the launcher waits for before it starts workers; None if nothing.
            overdue: seconds by which the agent's loop is overdue.
            progress: the progress of workers, by global rank.
            held: why workers cannot run, such as a debugger, by global rank.
            notes: what extensions add to the status, by name.
        """
        facts, history, progress, held = self.facts, self.history, progress or {}, held or {}
        began, last, end = history.phase_began, history.last, history.end
        failures = None if history.failed_round is None else history.failed_round.failures
        return {
            "schema": SCHEMA_VERSION,
            "plaunch": __version__,
            "run_id": facts["run_id"],
            "role": facts["role"],
            "host": facts["host"],
            "agent_pid": os.getpid(),
            "backend": facts.get("backend"),
            "alive": not overdue,
            "silent_seconds": round(overdue, 3),
            "state": self.group_state,
            "phase": history.phase,
            "since": self._created if began is None else began.timestamp,
            "waiting_for": waiting_for if history.phase in _WAITING else None,
            "round": _known(facts.get("round")),
            "attempt": facts.get("attempt", 0),
            "max_restarts": facts.get("max_restarts"),
            "min_nodes": facts.get("min_nodes"),
            "max_nodes": facts.get("max_nodes"),
            "group_rank": _known(facts.get("group_rank")),
            "group_world_size": _known(facts.get("group_world_size")),
            "ranks": facts.get("ranks") or None,
            "world_size": _known(facts.get("world_size")),
            "local_world_size": facts.get("local_world_size"),
            "master_addr": facts.get("master_addr") or None,
            "master_port": facts.get("master_port") or None,
            "workers": [
                {
                    **_describe_worker(worker),
                    **_describe_progress(progress.get(worker.global_rank)),
                    **_describe_held(held.get(worker.global_rank)),
                }
                for _, worker in sorted(history.round.workers.items())
            ],
            "notes": {**(notes or {})},
            "stop": self._stop,
            "failure": None
            if not failures
            else _select(next(iter(failures.values())), _OF_FAILURE),
            "end": None if end is None else _select(end, ("outcome", "exit_code")),
            "spent_seconds": {
                name: round(seconds, 3)
                for name, seconds in history.account.seconds_until(time.monotonic()).items()
            },
            "last_event": None
            if last is None
            else {"name": last.name, "timestamp": last.timestamp},
        }


def _describe_worker(worker: WorkerRun) -> dict[str, Any]:
    return {
        "local_rank": worker.local_rank,
        "global_rank": worker.global_rank,
        "pid": worker.pid,
        "state": worker.state,
        "exit_code": worker.exit_code,
        "since": worker.changed,
    }


def _describe_progress(progress: Progress | None) -> dict[str, Any]:
    if progress is None:
        return {}
    left = progress.seconds_left
    return {
        "step": progress.step,
        "total_steps": progress.total,
        "steps_per_second": round(progress.rate, 6) or None,
        "seconds_left": None if left is None else round(left, 1),
    }


def _describe_held(held: Held | None) -> dict[str, Any]:
    return {} if held is None else {"held": held.how, "held_since": held.since}


_OF_FAILURE = (
    "round",
    "attempt",
    "global_rank",
    "failed_host",
    "worker_pid",
    "exit_code",
    "signal_name",
    "headline",
)
_KEPT = (
    "backend",
    "min_nodes",
    "max_nodes",
    "local_world_size",
    "max_restarts",
    "attempt",
    "round",
    "group_rank",
    "group_world_size",
    "ranks",
    "world_size",
    "master_addr",
    "master_port",
)


def _select(event: Event, keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: event.metadata.get(key) for key in keys}


def _known(number: int | None) -> int | None:
    """The number; None if it is missing, or negative because it is not known yet."""
    return None if number is None or number < 0 else number
