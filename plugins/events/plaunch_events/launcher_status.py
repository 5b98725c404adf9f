"""The state of an agent, derived from its events."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from plaunch import __version__

from plaunch_events.time_accounting import LaunchPhase, TimeAccount

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch.agent import Progress
    from plaunch.events import Event
    from plaunch.process import Held

SCHEMA_VERSION = 1

_FINISHED = "finished"

_WAITING = (LaunchPhase.RENDEZVOUS.value, LaunchPhase.PAUSING.value)

_FACTS = ("backend", "min_nodes", "max_nodes", "local_world_size", "max_restarts")


class LauncherStatus:
    """Takes the events of one agent, in order, and says at any moment what they amount to.

    It has no message of a failure, no output and no setting that might hold a secret: it may be
    shown to everyone who can reach a port.

    Args:
        run_id: the id of the job.
        role: the name of the workers.
    """

    PHASES = (*(phase.value for phase in LaunchPhase), _FINISHED)

    def __init__(self, run_id: str, role: str) -> None:
        self.account = TimeAccount()
        self.phase = self.account.phase.value
        self.workers: dict[int, dict[str, Any]] = {}
        self.told: dict[str, Any] = {"run_id": run_id, "role": role, "host": os.uname().nodename}
        self.state = "INIT"
        self._since = time.time()
        self._stop: dict[str, Any] | None = None
        self._failure: dict[str, Any] | None = None
        self._end: dict[str, Any] | None = None
        self._last: Event | None = None

    def note(self, event: Event) -> None:
        """Take the next event."""
        told = event.metadata
        self._last = event
        self.told.update((key, told[key]) for key in _KEPT if told.get(key) is not None)
        self.account.note(event)
        phase = self.account.phase.value
        if event.name == "plaunch.launcher.finished":
            phase = _FINISHED
            self._end = {"outcome": told.get("outcome"), "exit_code": told.get("exit_code")}
        if phase != self.phase:
            self.phase, self._since = phase, event.timestamp
            self._stop = None
        self._note_details(event.name, event, told)

    def _note_details(self, name: str, event: Event, told: Mapping[str, Any]) -> None:
        if name == "plaunch.rendezvous.completed":
            self.workers.clear()
        elif name == "plaunch.worker.started":
            self.workers[told["local_rank"]] = {
                "local_rank": told["local_rank"],
                "global_rank": told["global_rank"],
                "pid": told["worker_pid"],
                "state": "running",
                "exit_code": None,
                "since": event.timestamp,
            }
        elif name == "plaunch.worker.exited":
            worker = self.workers.get(told["local_rank"])
            if worker is not None:
                worker.update(
                    state=worker_state(told), exit_code=told["exit_code"], since=event.timestamp
                )
        elif name == "plaunch.state.changed":
            self.state = str(told["new"])
        elif name == "plaunch.stop.step":
            self._stop = {key: told.get(key) for key in ("step", "signal_name", "seconds")}
        elif name == "plaunch.failure":
            known = self._failure
            if told.get("is_first") or known is None or known["round"] != told.get("round"):
                self._failure = {key: told.get(key) for key in _OF_FAILURE}

    def spent(self, now: float) -> dict[str, float]:
        """Where the time went until `now`, on the monotonic clock; see `TimeAccount`."""
        return self.account.seconds_until(now)

    def describe(
        self,
        waiting_for: str | None,
        silent: float,
        progress: Mapping[int, Progress] | None = None,
        held: Mapping[int, Held] | None = None,
        notes: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """All of it, as plain values for JSON.

        Args:
            waiting_for: what the launcher waits for before its workers are started, if it does.
            silent: seconds for which nothing was heard of the agent's loop that should have been.
            progress: how far workers are, by global rank.
            held: what holds workers that cannot run, by global rank.
            notes: the states that extensions show, by name.
        """
        told, progress, held = self.told, progress or {}, held or {}
        last = self._last
        return {
            "schema": SCHEMA_VERSION,
            "plaunch": __version__,
            "run_id": told["run_id"],
            "role": told["role"],
            "host": told["host"],
            "agent_pid": os.getpid(),
            "backend": told.get("backend"),
            "alive": not silent,
            "silent_seconds": round(silent, 3),
            "state": self.state,
            "phase": self.phase,
            "since": self._since,
            "waiting_for": waiting_for if self.phase in _WAITING else None,
            "round": _known(told.get("round")),
            "attempt": told.get("attempt", 0),
            "max_restarts": told.get("max_restarts"),
            "min_nodes": told.get("min_nodes"),
            "max_nodes": told.get("max_nodes"),
            "group_rank": _known(told.get("group_rank")),
            "group_world_size": _known(told.get("group_world_size")),
            "ranks": told.get("ranks") or None,
            "world_size": _known(told.get("world_size")),
            "local_world_size": told.get("local_world_size"),
            "master_addr": told.get("master_addr") or None,
            "master_port": told.get("master_port") or None,
            "workers": [
                {
                    **worker,
                    **_describe_progress(progress.get(worker["global_rank"])),
                    **_describe_held(held.get(worker["global_rank"])),
                }
                for _, worker in sorted(self.workers.items())
            ],
            "notes": {**(notes or {})},
            "stop": self._stop,
            "failure": self._failure,
            "end": self._end,
            "spent_seconds": {
                name: round(s, 3) for name, s in self.spent(time.monotonic()).items()
            },
            "last_event": None
            if last is None
            else {"name": last.name, "timestamp": last.timestamp},
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


# Of the first failure of the last round that had one.
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
    *_FACTS,
    "attempt",
    "round",
    "group_rank",
    "group_world_size",
    "ranks",
    "world_size",
    "master_addr",
    "master_port",
)


def worker_state(told: Mapping[str, Any]) -> str:
    """The state of a worker that has exited: succeeded, failed, or stopped by its agent."""
    if told.get("stopped"):
        return "stopped"
    return "failed" if told.get("exit_code") else "succeeded"


def _known(number: int | None) -> int | None:
    """The number, unless it stands for one that nobody knows yet."""
    return None if number is None or number < 0 else number
