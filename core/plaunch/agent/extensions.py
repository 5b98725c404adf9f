"""The contract of extensions, which run beside an agent: what they may read and request."""

from __future__ import annotations

from collections import deque
from dataclasses import field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from plaunch.agent.states import Requested, RequestKind
from plaunch.process.streams import OutputCounts
from plaunch.values import Value, plain_dataclass

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Collection, Mapping

    from plaunch.agent.poller import WakeUp
    from plaunch.agent.worker import RunResult, WorkerState
    from plaunch.events import Event
    from plaunch.process import Held
    from plaunch.rendezvous.job import JobOutcome


class Control(Protocol):
    """What an extension can do, on any thread; every method but `published` returns at once."""

    def snapshot(self) -> Snapshot:
        """The present state of the agent."""

    def held(self) -> Mapping[int, Held]:
        """What holds workers of this node that cannot run now, by global rank, and since when.

        That is the kernel, or what an extension has noted with `note_holds`.
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

    def note_holds(self, holds: Mapping[int, Held]) -> None:
        """Set what holds workers besides the kernel, for `held`; replaces all of it.

        Args:
            holds: by global rank, such as `at a prompt of pdb`.
        """

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


class Extension:
    """Runs beside the agent of one launch. A subclass defines the methods that it needs.

    No method may block the launch: `start` may take ten seconds, `stop` two, `rest` and `release`
    one. `handle` runs on a thread of the extension, which has a queue of events. An exception in
    `start` ends the launch; a later one is logged with the plugin's name.

    Attributes:
        takes_events: whether `handle` is called. An extension without this costs less: no events
            are created until it calls `Control.take_events`.
        known_as: its name in messages about its requests and lines; empty for the plugin's name.
    """

    takes_events: bool = True
    known_as: str = ""

    def start(self, control: Control) -> None:
        """Begin, before the first round."""

    def handle(self, event: Event) -> None:
        """Handle the next event."""

    def stop(self, result: RunResult | None) -> None:
        """End, after the last event; `result` is None if there is none."""

    def rest(self) -> None:
        """End all threads until `release`, because the process is about to fork."""

    def release(self) -> None:
        """Continue after `rest`; also called when workers have been started without a fork."""


class Progress(NamedTuple):
    """The progress that a worker has reported.

    Args:
        step: its current step.
        total: how many there are; None if it has not reported that.
        rate: recent steps per second; 0 if unknown.
    """

    step: int
    total: int | None = None
    rate: float = 0.0

    @property
    def seconds_left(self) -> float | None:
        """Seconds for the remaining steps at that rate; None if unknown."""
        if self.total is None or self.rate <= 0:
            return None
        return max(self.total - self.step, 0) / self.rate


@plain_dataclass
class Snapshot(Value):
    """The state of an agent at one time; a launch adds `overdue` to `dropped`.

    Args:
        state: of its workers.
        round: how many worlds were formed before this one; -1 before the first. Like `attempt`, it
            is that of the last round until the next one has formed.
        attempt: how many restarts were used before this round.
        ranks: the global ranks of its workers; empty before the first round.
        pids: the process ids of those that run, by global rank.
        waits_for: what the agent or its rendezvous waits for before workers are started, in a few
            words; empty if nothing.
        overdue: seconds since a loop that is overdue was last alive; 0 if it is not.
        patience: seconds within which the next call of the loop is due.
        output: how much output of the workers has passed through the launcher.
        dropped: how many events each handler has missed, by name.
        is_job_wide: whether the rendezvous knows the whole job, so that a stop or a restart that is
            requested here applies to all of its nodes.
        stdouts: the files with the workers' standard output in this round, by local rank; a worker
            without one is missing, or has an empty text.
        stderrs: the same for standard error.
        progress: of the workers, by global rank, if an extension reports it.
        succeeded: when workers ended that have succeeded, by global rank, in seconds since the
            epoch.
        notes: the states that extensions show, by name.
        verdict: how the job ended, once this node knows; None also if it was over before this node
            joined.
    """

    state: WorkerState
    round: int
    attempt: int
    ranks: tuple[int, ...]
    pids: Mapping[int, int]
    waits_for: str = ""
    overdue: float = 0.0
    patience: float = 0.0
    output: OutputCounts = field(default_factory=OutputCounts)
    dropped: Mapping[str, int] = field(default_factory=dict)
    is_job_wide: bool = False
    stdouts: Mapping[int, str] = field(default_factory=dict)
    stderrs: Mapping[int, str] = field(default_factory=dict)
    progress: Mapping[int, Progress] = field(default_factory=dict)
    succeeded: Mapping[int, float] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    verdict: JobOutcome | None = None


class SignalWorkers(NamedTuple):
    """A signal for the running workers, or some global ranks of them, without stopping them.

    The reason is reported for a worker that it ends.
    """

    signum: signal.Signals
    ranks: frozenset[int] | None
    reason: str


class Hang(NamedTuple):
    """Running workers hang; the one of this global rank counts as failed."""

    rank: int
    text: str
    is_final: bool


class Requests:
    """Keeps requests of any thread until the loop takes them.

    Args:
        wake_up: is woken at every request.
    """

    def __init__(self, wake_up: WakeUp) -> None:
        self._wake_up = wake_up
        self._queue: deque[Requested | SignalWorkers | Hang] = deque()

    def put(self, request: Requested | SignalWorkers | Hang) -> None:
        """Add a request, and wake the loop."""
        self._queue.append(request)
        self._wake_up.wake()

    def take(self) -> list[Requested | SignalWorkers | Hang]:
        """All requests since the last call, in order."""
        return [self._queue.popleft() for _ in range(len(self._queue))]

    def has_end(self) -> bool:
        """Whether the end of the run is requested by what has not been taken yet."""
        return any(
            isinstance(request, Requested) and request.kind is not RequestKind.RESTART
            for request in tuple(self._queue)
        )
