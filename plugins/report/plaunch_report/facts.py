"""The content of a report as data, with the keys of `plaunch-report --json`.

Times are seconds since the first event of the run.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from plaunch_events import worker_state


@dataclass
class PhaseSpan:
    """A time in which one node was in one phase, such as training."""

    node: int
    phase: str
    begin: float
    end: float
    round: int


@dataclass(slots=True)
class WorkerLife:
    """One worker process; unknown values, such as its end, are None."""

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
    def state(self) -> str:
        """How it ended: succeeded, failed, stopped (by its agent), or unknown."""
        if self.exit_code is None:
            return "unknown"
        return worker_state({"exit_code": self.exit_code, "stopped": self.stopped})


@dataclass
class ReportedFailure:
    """A failure of a worker or launcher, merged from the events of all nodes that recorded it.

    Of a launcher, `global_rank` is negative. `told_by` has the nodes that recorded the failure.
    """

    attempt: int
    round: int
    time: float
    global_rank: int
    host: str
    pid: int
    exit_code: int | None
    signal: str
    message: str = ""
    error_file: str = ""
    last_lines: str = ""
    is_first: bool = False
    headline: str = ""
    place: str = ""
    told_by: list[int] = field(default_factory=list)

    @property
    def who(self) -> str:
        """The failed process: `rank 3`, or `the launcher`."""
        return "the launcher" if self.global_rank < 0 else f"rank {self.global_rank}"

    @property
    def how(self) -> str:
        """The headline of the failure, or else how the process ended."""
        if self.headline:
            return self.headline
        if self.signal:
            return f"killed by {self.signal}"
        return "failed" if self.exit_code is None else f"exit code {self.exit_code}"


@dataclass
class TimelineMark:
    """Something that happened on a node at one time.

    `kind` is restart, membership, signal, request, or killed (a step of a stop).
    """

    node: int
    kind: str
    time: float
    text: str


@dataclass
class RoundSummary:
    """One round. Its training ends when the first of its known nodes stops training."""

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
class RestartSummary:
    """One restart of one node, complete at `time`.

    `seconds` has its parts noticing, stopping, waiting, starting, and their total.
    """

    node: int
    round: int
    time: float
    cause: str
    seconds: dict[str, float]


@dataclass
class NodeSummary:
    """One agent. `seconds` has its times, by the names of `plaunch_events.TimeAccount`."""

    label: str
    host: str
    pid: int
    group_ranks: list[int]  # its index, in each of its rounds
    ranks: list[str]  # those of its workers, in each of its rounds
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
class LaunchSummary:
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
    first_cause: ReportedFailure | None  # the first failure, also of a job that succeeded
    final_cause: (
        ReportedFailure | None
    )  # of a failed job: the first failure of its last failed round
    nodes: list[NodeSummary]
    rounds: list[RoundSummary]
    restarts: list[RestartSummary]
    failures: list[ReportedFailure]
    marks: list[TimelineMark]
    lives: list[WorkerLife]
    spans: list[PhaseSpan]
