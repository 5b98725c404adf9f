"""What runs beside an agent: the contract of extensions, and the control that they are given."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from plaunch.process.streams.traffic import OutputCounts

if TYPE_CHECKING:
    import signal
    from collections.abc import Collection, Mapping

    from plaunch.agent.worker import RunResult
    from plaunch.events import Event


class RequestKind(enum.Enum):
    """What an extension may ask of the agent.

    Attributes:
        STOP: end the job, as a signal that stops it does.
        RESTART: stop all workers and start them again in a new round; it is no failure, and uses no
            restart.
        LEAVE: end the workers of this node; the others go on without it.
    """

    STOP = "stop"
    RESTART = "restart"
    LEAVE = "leave"


@dataclass(frozen=True)
class Snapshot:
    """What an agent does at one moment.

    Args:
        state: the state of its workers.
        round: how often a world was formed before; -1 before the first.
        attempt: how many failures have used a restart.
        ranks: the global ranks of this node's workers by local rank.
        pids: their processes by local rank; empty while none runs.
        waits_for: whom or what the rendezvous waits for, in a few words; empty if it does not.
        overdue: seconds for which the agent's loop was not heard of that should have been, or 0.
        patience: seconds within which it should have been heard of.
        output: how much output of the workers has passed through the launcher.
        dropped: how many events each handler has not had, by name.
    """

    state: str
    round: int
    attempt: int
    ranks: Mapping[int, int] = field(default_factory=dict)
    pids: Mapping[int, int] = field(default_factory=dict)
    waits_for: str = ""
    overdue: float = 0.0
    patience: float = 0.0
    output: OutputCounts = field(default_factory=OutputCounts)
    dropped: Mapping[str, int] = field(default_factory=dict)


class Control(Protocol):
    """What an extension can do; every method may be called on any thread, and returns at once."""

    def snapshot(self) -> Snapshot:
        """What the agent does now."""

    def request(self, kind: RequestKind | str, reason: str) -> None:
        """Ask the agent for something; it is done as if it came with the next event.

        Stop and restart are for the whole job where the rendezvous knows one. Who asks is said with
        the reason. What cannot be done any more is not done.
        """

    def signal_workers(
        self,
        signum: signal.Signals | int,
        ranks: Collection[int] | None = None,
        reason: str = "",
    ) -> None:
        """Send a signal to the workers of this node with these global ranks, or to all.

        Args:
            signum: the signal.
            ranks: global ranks; those of other nodes are left out.
            reason: why, for the report of a worker that the signal ends.
        """

    def say(self, text: str) -> None:
        """Say one line to the user, with the plugin's name."""


class Extension(Protocol):
    """Runs beside the agent of one launch.

    No method may hold the launch: `start` is waited for ten seconds, `stop` two; `handle` runs on a
    thread of the extension's own, and events wait for it. One that raises in `start` ends the
    launch; what it raises later is logged with its plugin's name.
    """

    def start(self, control: Control) -> Any:
        """Begin, before the first round."""

    def handle(self, event: Event) -> Any:
        """Take the next event."""

    def stop(self, result: RunResult | None) -> Any:
        """End, after the last event; `result` is None if there is none."""
