"""What runs beside an agent: the contract of extensions, and the control that they are given."""

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
        """What the agent does now."""

    def held(self) -> Mapping[int, Held]:
        """What holds workers of this node that cannot run now, by global rank, and since when.

        Each call reads some files for each worker, which takes about a tenth of a millisecond.
        """

    def request(self, kind: RequestKind | str, reason: str) -> None:
        """Ask the agent for something; it is done as if it came with the next event.

        Stop and restart are for the whole job where the rendezvous knows one. The reason names who
        asks. What cannot be done any more is not done.
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
        """End the round of the whole job, because its workers do not go on: a failure.

        What follows is what follows failures of the cause `hang`. Nothing happens unless that
        worker runs.

        Args:
            rank: the worker of this node that counts as the one that failed, by its global rank.
            text: where it is, and the others, for the report; it may have several lines.
            is_final: whether no restart is to follow.
        """

    def note_progress(self, progress: Mapping[int, Progress]) -> None:
        """Have the next snapshots say how far workers are, by global rank, and no others."""

    def note_state(self, name: str, text: str) -> None:
        """Have the next snapshots, and so `/status` and `plaunchctl status`, show a state.

        Args:
            name: what it is the state of, in a word or two, as `checkpoints`; it takes the place of
                an earlier state with that name.
            text: the state, in one line of at most 200 characters; empty removes it.

        Raises:
            TypeError: they are not texts.
        """

    def take_events(self) -> list[Event]:
        """The events since the last call, or since the launch has begun, made on this thread.

        For an extension that does not take them as they come. The oldest ones may be missing, if
        thousands have come since.
        """

    def say(self, text: str) -> None:
        """Say one line to the user, with the plugin's name."""

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
        """Have a text heard on all nodes of the round; see `plaunch.rendezvous.SharedTexts`."""

    def listen(self, name: str, listener: Callable[[str], None]) -> None:
        """Hear broadcasts of that name, each on a thread of its own."""


class Extension(Protocol):
    """Runs beside the agent of one launch.

    No method may hold the launch: `start` is waited for ten seconds, `stop` two; `handle` runs on a
    thread of the extension's own, and events wait for it. One that raises in `start` ends the
    launch; what it raises later is logged with its plugin's name.

    One with an attribute `takes_events` that is False costs a launch less: `handle` is not called,
    and no events are made for it before it asks its control for them. An attribute `known_as` is
    how messages call it where it asks for something or says something, instead of its plugin.
    """

    def start(self, control: Control) -> Any:
        """Begin, before the first round."""

    def handle(self, event: Event) -> Any:
        """Take the next event."""

    def stop(self, result: RunResult | None) -> Any:
        """End, after the last event; `result` is None if there is none."""
