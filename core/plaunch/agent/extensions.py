"""The contract of extensions, which run beside an agent, and the control that they get."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Collection, Mapping

    from plaunch.agent.requests import Progress, Snapshot
    from plaunch.agent.states import RequestKind
    from plaunch.agent.worker import RunResult
    from plaunch.events import Event
    from plaunch.process import Held


class Control(Protocol):
    """What an extension can do, on any thread; every method but `published` returns at once."""

    def snapshot(self) -> Snapshot:
        """The present state of the agent."""

    def held(self) -> Mapping[int, Held]:
        """What holds workers of this node that cannot run now, by global rank, and since when.

        Each call reads some files for each worker, which takes about a tenth of a millisecond.
        """

    def request(self, kind: RequestKind | str, reason: str) -> None:
        """Request a stop, a restart, or that this node leaves; handled with the next event.

        Stop and restart apply to the whole job if the rendezvous knows it. The reason should name
        the user or program behind the request. A request that comes too late has no effect.
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

    def report_hang(self, rank: int, text: str, *, is_final: bool = False) -> None:
        """Fail the round of the whole job, because its workers hang.

        Restarts follow as for any failure, with the cause `hang`. Ignored if that worker does not
        run.

        Args:
            rank: the global rank of the worker of this node that counts as failed.
            text: where it and the others hang, for the report; may have several lines.
            is_final: whether no restart may follow.
        """

    def note_progress(self, progress: Mapping[int, Progress]) -> None:
        """Set the progress of workers in the next snapshots, by global rank; replaces all of it."""

    def note_state(self, name: str, text: str) -> None:
        """Show a state in the next snapshots, and so in `/status` and `plaunchctl status`.

        Args:
            name: a word or two, such as `checkpoints`; replaces an earlier state of that name.
            text: the state, in one line of at most 200 characters; empty removes it.

        Raises:
            TypeError: an argument is not a string.
        """

    def take_events(self) -> list[Event]:
        """The events since the last call, or since the launch began; created on this thread.

        For extensions without `takes_events`. After thousands of events, the oldest may be missing.
        """

    def say(self, text: str) -> None:
        """Show one line to the user, with the plugin's name."""

    def publish(self, name: str, text: str) -> None:
        """Let the other nodes of the job read a text; see `plaunch.rendezvous.SharedTexts`."""

    def published(
        self, name: str, timeout: float = 1.0, *, all_nodes: bool = False
    ) -> Mapping[str, str] | None:
        """The texts of all nodes of the round, by node, this one's too; waits for the store.

        With `all_nodes`, those that have published none have an empty text. None if the rendezvous
        has no such texts: then nothing is published or broadcast either.
        """

    def broadcast(self, name: str, text: str) -> None:
        """Send a text to all nodes of the round; see `plaunch.rendezvous.SharedTexts`."""

    def listen(self, name: str, listener: Callable[[str], None]) -> None:
        """Call `listener` with each broadcast of that name, on a thread of its own."""


class Extension(Protocol):
    """Runs beside the agent of one launch.

    No method may block the launch: `start` may take ten seconds, `stop` two. `handle` runs on a
    thread of the extension, which has a queue of events. An exception in `start` ends the launch; a
    later one is logged with the plugin's name.

    An extension whose attribute `takes_events` is False costs less: `handle` is not called, and no
    events are created until it calls `Control.take_events`. Messages about its requests and lines
    use its attribute `known_as`, if it has one, instead of the plugin's name.
    """

    def start(self, control: Control) -> Any:
        """Begin, before the first round."""

    def handle(self, event: Event) -> Any:
        """Handle the next event."""

    def stop(self, result: RunResult | None) -> Any:
        """End, after the last event; `result` is None if there is none."""
