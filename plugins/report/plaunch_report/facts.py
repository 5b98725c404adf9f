"""What a report says, as data. Times are seconds since the run's first event."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Span:
    """What one node did for a while: such as starting, training or stopping."""

    node: int
    phase: str
    begin: float
    end: float
    round: int


@dataclass(slots=True)
class Life:
    """One worker process. What is not known, such as the end, is None."""

    node: int
    round: int
    attempt: int
    local_rank: int
    global_rank: int
    pid: int
    begin: float
    end: float | None = None
    exit_code: int | None = None
    signal: str = ""
    stopped: bool = False

    @property
    def fate(self) -> str:
        """In one word: succeeded, failed, stopped (by its agent), or unknown."""
        if self.exit_code is None:
            return "unknown"
        if self.stopped:
            return "stopped"
        return "succeeded" if self.exit_code == 0 else "failed"


@dataclass
class Failure:
    """A failure of a worker or of a launcher, which several nodes may have told of.

    A launcher has no rank: `global_rank` is -1, or lower.
    """

    attempt: int
    round: int
    time: float
    global_rank: int
    host: str
    pid: int
    exit_code: int | None
    signal: str
    message: str
    error_file: str
    last_lines: str
    is_first: bool
    headline: str = ""
    place: str = ""
    told_by: list[int] = field(default_factory=list)

    @property
    def who(self) -> str:
        """What has failed: `rank 3`, or `the launcher`."""
        return "the launcher" if self.global_rank < 0 else f"rank {self.global_rank}"

    @property
    def how(self) -> str:
        """What happened, in one line, or how it ended."""
        if self.headline:
            return self.headline
        if self.signal:
            return f"killed by {self.signal}"
        return "failed" if self.exit_code is None else f"exit code {self.exit_code}"


@dataclass
class Mark:
    """Something that happened at one moment of a node.

    `kind` is restart, membership, signal, request, or killed (a step of a stop).
    """

    node: int
    kind: str
    time: float
    text: str


@dataclass
class Round:
    """One world. Its training ends when its first node no longer trains, as far as is known."""

    number: int
    attempt: int
    formed: float
    trains_from: float | None
    trains_until: float | None
    world_size: int
    nodes: int
    hosts: list[str]
    ended_by: str


@dataclass
class Restart:
    """What one node needed until its workers ran again, at `time`, in another round.

    `seconds` has noticing, stopping, waiting, starting, and their total.
    """

    node: int
    round: int
    time: float
    cause: str
    seconds: dict[str, float]


@dataclass
class Node:
    """One agent. `seconds` has its account, by the names of `plaunch_events.TimeAccount`."""

    label: str
    host: str
    pid: int
    group_ranks: list[int]
    local_world_size: int
    begin: float
    end: float
    outcome: str
    reason: str
    exit_code: int | None
    seconds: dict[str, float]
    restarts: int
    account: str
    skew: float | None


@dataclass
class Story:
    """Everything about one launch of a job."""

    run_id: str
    launch: int
    launches: int
    began: float  # seconds since the epoch
    duration: float
    outcome: str
    exit_code: int | None
    reason: str
    entry_point: str
    backend: str
    versions: list[str]
    notes: list[str]
    first_cause: Failure | None  # the first failure of all, also of a job that did not fail
    final_cause: Failure | None  # if the job failed: the first one of its last round that failed
    nodes: list[Node]
    rounds: list[Round]
    restarts: list[Restart]
    failures: list[Failure]
    marks: list[Mark]
    lives: list[Life]
    spans: list[Span]
