"""The script of a run: the job, its world, and the faults that hit it and when."""

from __future__ import annotations

import enum
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    T = TypeVar("T")

__all__ = ["Choices", "FaultKind", "InjectedFault", "Script", "StoreKind", "make_script"]


class StoreKind(enum.Enum):
    """The store of the rendezvous."""

    JOB = "job"
    TCP = "tcp"
    ETCD = "etcd"


class FaultKind(enum.Enum):
    """What happens to a node, or to the store."""

    FAIL = "a worker fails"
    KILLED = "a worker is killed"
    EARLY = "a worker ends early"
    HANG = "a hang is reported"
    UNKILLABLE = "a worker survives SIGKILL"
    RESIST = "workers resist the stop"
    KILL_AGENT = "the agent is killed"
    CRASH = "the host fails"
    PAUSE = "the agent is suspended"
    CLOCK = "the wall clock jumps"
    CUT = "the cable is cut"
    CUT_TO = "packets to the store are lost"
    CUT_FROM = "packets from the store are lost"
    SIGNAL = "the agent receives SIGTERM"
    STOP_JOB = "the end of the job is requested"
    RESTART_JOB = "a restart is requested"
    LEAVE = "the node is asked to leave"
    JOIN = "a new node starts"
    STORE_SLOW = "the store is slow"
    STORE_LOSS = "connections to the store break"
    STORE_DOWN = "the store restarts"
    STORE_PAUSE = "the store is suspended"
    UNHEALTHY = "health checks fail"
    # Of a command that drives the agents; no script has them.
    COMMAND_SIGNAL = "the command receives a signal"
    COMMAND_KILLED = "the command is killed"
    COMMAND_PAUSE = "the command is suspended"
    CONNECTION_LOSS = "a connection of the command breaks"
    READER_PAUSE = "the reader of the output pauses"


# After these, a node may not reach the store for a while.
LINK_FAULTS = (FaultKind.CUT, FaultKind.CUT_TO, FaultKind.CUT_FROM, FaultKind.PAUSE)
# After these, nodes may lose touch with the store one by one.
STORE_FAULTS = (
    FaultKind.STORE_SLOW, FaultKind.STORE_LOSS, FaultKind.STORE_DOWN, FaultKind.STORE_PAUSE,
)  # fmt: skip
# After these, agents may miss their command one by one.
COMMAND_LOSSES = (
    FaultKind.COMMAND_KILLED, FaultKind.COMMAND_PAUSE, FaultKind.CONNECTION_LOSS,
)  # fmt: skip
# After these, a node may count as lost; each of them lasts for a while.
LOSSES = (
    FaultKind.KILL_AGENT, FaultKind.CRASH, *LINK_FAULTS, *STORE_FAULTS, *COMMAND_LOSSES,
)  # fmt: skip
# A restart may be counted for these.
CHARGED = (
    FaultKind.FAIL, FaultKind.KILLED, FaultKind.EARLY, FaultKind.HANG, FaultKind.RESTART_JOB,
    *LOSSES,
)  # fmt: skip


@dataclass(frozen=True)
class InjectedFault:
    """One fault.

    Args:
        at: seconds after the start of the run.
        kind: what happens.
        node: the index of the host that it hits; of the store, none.
        lasts: seconds until it is over, where it ends.
        value: an exit code, seconds of a clock, or a probability in percent, by kind.
        returns: whether a node that is lost by it starts again when it is over.
        requests: if not 0, it happens between this request of the node to the store and the reply,
            counted from `at`.
    """

    at: float
    kind: FaultKind
    node: int = 0
    lasts: float = 0.0
    value: int = 0
    returns: bool = False
    requests: int = 0

    def describe(self) -> str:
        """Describe it in one line."""
        where = "" if self.kind.name.startswith("STORE") else f" on n{self.node}"
        lasts = f", for {self.lasts:.2f} s" if self.lasts else ""
        value = f" ({self.value})" if self.value else ""
        value += f" at the next {self.requests}. request" if self.requests else ""
        returns = ", and starts again" if self.returns else ""
        return f"{self.at:7.2f} s: {self.kind.value}{where}{value}{lasts}{returns}"


@dataclass(frozen=True)
class Script:
    """One job with its faults.

    Args:
        seed: of what is random beside the script: latencies, and the order of tasks.
        store: the kind of store.
        nodes: the number of nodes that start.
        min_nodes: of a round.
        max_nodes: of a round.
        workers: per node.
        max_restarts: the budget for failures of workers.
        node_restarts: the budget for lost nodes, if it has its own.
        exclude_after: failures after which a node is excluded.
        duration: seconds that a complete round trains.
        peers_fail: whether the peers of a lost rank fail; otherwise they hang.
        latency: mean seconds of a message.
        starts: when each node starts, in seconds.
        offsets: by how much the wall clock of each host is wrong, in seconds.
        faults: sorted by time.
        stop_times: seconds that the workers of each host need to end after a stop signal.
        check_time: seconds that health checks take; None for none.
    """

    seed: int
    store: StoreKind = StoreKind.JOB
    nodes: int = 3
    min_nodes: int = 3
    max_nodes: int = 3
    workers: int = 2
    max_restarts: int = 3
    node_restarts: int | None = None
    exclude_after: int | None = None
    duration: float = 10.0
    peers_fail: bool = True
    latency: float = 0.001
    starts: tuple[float, ...] = (0.0, 0.0, 0.0)
    offsets: tuple[float, ...] = (0.0, 0.0, 0.0)
    faults: tuple[InjectedFault, ...] = ()
    stop_times: tuple[float, ...] = (0.2, 0.2, 0.2)
    check_time: float | None = None

    def to_json(self) -> str:
        """Return it as JSON, for a file of a test."""
        fields = asdict(self)
        fields["store"] = self.store.value
        fields["faults"] = [
            {**asdict(fault), "kind": fault.kind.name.lower()} for fault in self.faults
        ]
        return json.dumps(fields, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Script:
        """Return the script of `to_json`; fields that are left out have their defaults."""
        fields = json.loads(text)
        faults = [
            InjectedFault(**{**fault, "kind": FaultKind[fault["kind"].upper()]})
            for fault in fields.pop("faults", ())
        ]
        store = StoreKind(fields.pop("store", StoreKind.JOB.value))
        lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
        return cls(**{**fields, **lists, "store": store, "faults": tuple(faults)})

    def describe(self) -> str:
        """Describe it on a few lines."""
        lines = [
            f"seed {self.seed}, store {self.store.value}, {self.nodes} nodes of "
            f"{self.min_nodes} to {self.max_nodes}, {self.workers} workers each, "
            f"{self.max_restarts} restarts"
            + (f", node:{self.node_restarts}" if self.node_restarts is not None else "")
            + (f", excluded after {self.exclude_after}" if self.exclude_after else ""),
            f"a round trains {self.duration:.1f} s; peers of a lost rank "
            f"{'fail' if self.peers_fail else 'hang'}; workers stop in "
            f"{', '.join(f'{seconds:g}' for seconds in self.stop_times)} s; "
            f"latency {self.latency * 1000:.1f} ms"
            + ("" if self.check_time is None else f"; health checks take {self.check_time:g} s"),
        ]
        return "\n".join([*lines, *(fault.describe() for fault in self.faults)])


class Choices(Protocol):
    """Where a script's choices come from: `random.Random`, or hypothesis, which shrinks them."""

    def randint(self, a: int, b: int) -> int:
        """Return a number from `a` to `b`."""

    def uniform(self, a: float, b: float) -> float:
        """Return a number from `a` to `b`."""

    def choice(self, seq: Sequence[T]) -> T:
        """Return one of `seq`."""


# Kinds are chosen as often as they are listed.
_KINDS = (
    FaultKind.FAIL,
    FaultKind.FAIL,
    FaultKind.FAIL,
    FaultKind.KILLED,
    FaultKind.EARLY,
    FaultKind.HANG,
    FaultKind.UNKILLABLE,
    FaultKind.RESIST,
    FaultKind.KILL_AGENT,
    FaultKind.KILL_AGENT,
    FaultKind.CRASH,
    FaultKind.CRASH,
    FaultKind.PAUSE,
    FaultKind.CLOCK,
    FaultKind.CUT,
    FaultKind.CUT,
    FaultKind.CUT_TO,
    FaultKind.CUT_FROM,
    FaultKind.SIGNAL,
    FaultKind.STOP_JOB,
    FaultKind.RESTART_JOB,
    FaultKind.LEAVE,
    FaultKind.JOIN,
    FaultKind.STORE_SLOW,
    FaultKind.STORE_LOSS,
    FaultKind.STORE_DOWN,
    FaultKind.STORE_PAUSE,
    FaultKind.UNHEALTHY,
)
# Those that may happen between a request and its reply.
_AT_REQUESTS = (FaultKind.KILL_AGENT, FaultKind.CRASH, *LINK_FAULTS)
# Some outlast every timeout of the rendezvous, most do not.
_LASTS = ((0.05, 2.0), (0.05, 2.0), (2.0, 8.0), (8.0, 40.0), (40.0, 90.0))


def make_script(
    choices: Choices,
    seed: int,
    store: StoreKind | None = None,
    kinds: Sequence[FaultKind] = _KINDS,
) -> Script:
    """Make a script of one to six faults.

    Args:
        choices: where its choices come from.
        seed: of the run.
        store: the kind of store; None to choose it.
        kinds: the kinds of faults; one that is listed twice is chosen twice as often.
    """
    nodes = choices.choice((3, 3, 3, 2, 4))
    min_nodes = choices.choice((nodes, nodes - 1, max(nodes - 2, 1)))
    duration = choices.uniform(2.0, 10.0)
    end = duration + 6.0
    faults: list[InjectedFault] = []
    for _ in range(choices.randint(1, 6)):
        # Faults come together more often than by chance.
        follows = bool(faults) and choices.choice((True, False, False))
        begin = faults[-1].at if follows else 0.0
        faults.append(_make_fault(choices, nodes, kinds, begin, begin + 1.0 if follows else end))
    return Script(
        seed=seed,
        store=store or choices.choice(tuple(StoreKind)),
        nodes=nodes,
        min_nodes=min_nodes,
        max_nodes=nodes,
        workers=choices.choice((1, 2, 2)),
        max_restarts=choices.choice((0, 1, 3, 3, 10)),
        node_restarts=choices.choice((None, None, 0, 1, 3)),
        exclude_after=choices.choice((None, None, None, 2)),
        duration=duration,
        peers_fail=choices.choice((True, True, False)),
        latency=choices.choice((0.0002, 0.001, 0.01, 0.05)),
        starts=tuple(choices.uniform(0.0, 2.0) for _ in range(nodes)),
        offsets=tuple(choices.choice((0.0, 0.0, -300.0, 40.0)) for _ in range(nodes)),
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
        stop_times=tuple(choices.choice((0.2, 0.2, 3.0, 8.0)) for _ in range(nodes)),
        check_time=choices.choice((None, None, None, 0.1, 3.0)),
    )


def _make_fault(
    choices: Choices, nodes: int, kinds: Sequence[FaultKind], begin: float, end: float
) -> InjectedFault:
    kind = choices.choice(kinds)
    value = 0
    if kind is FaultKind.FAIL:
        value = choices.choice((1, 1, 3, 17))
    elif kind is FaultKind.KILLED:
        value = choices.choice((-9, -11, -6))
    elif kind is FaultKind.CLOCK:
        value = choices.choice((-3600, -5, 5, 3600))
    elif kind is FaultKind.STORE_LOSS:
        value = choices.choice((1, 5, 20))
    is_at_request = kind in _AT_REQUESTS and choices.choice((False, True))
    return InjectedFault(
        at=choices.uniform(begin, end),
        kind=kind,
        node=choices.randint(0, nodes - 1),
        lasts=choices.uniform(*choices.choice(_LASTS)),
        value=value,
        returns=choices.choice((True, True, False)),
        requests=choices.choice((1, 2, 3, 4, 6, 9)) if is_at_request else 0,
    )
