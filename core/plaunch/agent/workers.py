"""The workers of a node, and a stop of them, for the agent's loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Collection, Mapping, Sequence

    from plaunch.agent.extensions import Hang
    from plaunch.agent.worker import RunResult, WorkerGroup
    from plaunch.process.stopping.stop import Stop
    from plaunch.process.streams import Streams
    from plaunch.process.watches import HeldProcesses


class Workers(Protocol):
    """The workers of a node, as the loop drives them.

    `LocalWorkers` are those of plaunch's own agent. `plaunch_torchrun.polled_workers` adapts agents
    that define torchrun's methods themselves, which must be polled and may block.

    Attributes:
        group: the workers, which change from round to round.
        holds: records what has suspended them.
        settle_time: seconds after a failure in which others of the same cause are found; 0 if no
            more will be known of it.
    """

    group: WorkerGroup
    holds: HeldProcesses
    settle_time: float

    @property
    def is_final(self) -> bool:
        """Whether no restart may follow their failure."""

    def preparation(self) -> Callable[[], Mapping[str, float]] | None:
        """What must return before `start`, if anything; may block, and returns seconds by name."""

    def start(self) -> None:
        """Start the workers of a round, and record their ids."""

    def forked(self) -> Collection[int]:
        """The local ranks of workers that were forked by a starter."""

    def exit_fds(self) -> Sequence[int]:
        """Descriptors that become readable when `check` or `tend_store` has something to do."""

    def due(self) -> float | None:
        """Seconds until `check` and `tend_store` must be called in any case, or None."""

    def check(self) -> RunResult:
        """Return the state of the workers; does not wait."""

    def tend_store(self) -> None:
        """Provide what other nodes' workers need of this node, whose own workers have ended."""

    def begin_stop(self, signum: signal.Signals) -> Stop | None:
        """Begin to stop them with `signum`; None if that is already over.

        The loop takes the steps of the stop, and calls `end_stop` at its end.
        """

    def begin_clearing(self) -> Stop | None:
        """The same for processes that workers left behind when all of them had succeeded."""

    def end_stop(self) -> None:
        """Update the results after the last step of a stop.

        Raises:
            UnkillableWorkerError: some workers have not ended.
        """

    def stopped_result(self) -> RunResult | None:
        """The result so far, with failures; None if it is not known."""

    def are_of_use(self) -> bool:
        """Whether workers that failed are the job's concern, and can be started again.

        False if the host has failed: the job should then continue without it.
        """

    def signal(
        self, signum: signal.Signals, ranks: Collection[int] | None = None, reason: str = ""
    ) -> None:
        """Send a signal to the running workers, or some global ranks, without stopping them.

        The reason is reported for a worker that it ends.
        """

    def note_hang(self, hang: Hang) -> None:
        """Make the next `check` fail the round, because its workers hang."""

    def fail_raised(self) -> bool:
        """Make the next `check` fail if workers have raised an exception and have not exited.

        Returns:
            Whether there are such workers.
        """

    def note_peers_ended(self, ago: float) -> None:
        """Note that the workers of half of the nodes have succeeded, `ago` seconds before.

        Workers that run much longer are reported, with the places where they are.
        """

    def wait_for_guests(self, timeout: float) -> None:
        """Wait at most `timeout` seconds for the workers of other nodes to leave this node's store.

        Runs in a background thread. The store may be closed meanwhile.
        """

    def pids(self) -> dict[int, int]:
        """The process ids of the running workers, by global rank."""

    def succeeded(self) -> Mapping[int, float]:
        """When successful workers ended, by global rank; empty if unknown."""

    def streams(self) -> Streams | None:
        """The streams with their output, which may be slow to reach a console; None if unknown."""

    def log_files(self) -> tuple[Mapping[int, str], Mapping[int, str]]:
        """The files with their standard output and error, by local rank; empty for none."""
