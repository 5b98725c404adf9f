"""The small objects that the routines of a node share. Each routine owns its other state.

The membership's lock guards all of them. Code that reads without the lock reads one attribute,
which is replaced and never modified.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from plaunch_network import HeldPort

from plaunch_membership.operations import Routine
from plaunch_membership.state import JobEventKind

if TYPE_CHECKING:
    from plaunch.rendezvous import MembershipChange

    from plaunch_membership.keys import Keys
    from plaunch_membership.node import RoundPlace
    from plaunch_membership.state import JobState, RecordedVerdict

Request = Callable[[], Routine[object]]


@dataclass(frozen=True)
class KnownJob:
    """One incarnation of a job, as far as this node has read it.

    The writer finds the job; after that the watcher updates it.

    Args:
        incarnation: counts the incarnations that this node has entered.
        keys: the keys of its records.
        record: the stored record of the run id.
        state: the last state that was read; None before the job is found.
        state_record: the stored record of that state.
    """

    incarnation: int
    keys: Keys
    record: bytes = b""
    state: JobState | None = None
    state_record: bytes = b""


@dataclass
class PeerStatus:
    """The status of the other nodes of one incarnation, from heartbeats and states.

    Args:
        watched: the nodes that the leader watches.
        lost: the nodes that were declared lost, and why.
        gone: the nodes that have announced their departure, and why.
        left_at: when this node first knew that others do not rejoin, on its clock.
        stopped: those of them whose workers have ended.
        stopping: until when the next round waits for the workers of the others.
        moving: the nodes that were seen alive.
    """

    watched: frozenset[str] = frozenset()
    lost: dict[str, str] = field(default_factory=dict)
    gone: dict[str, str] = field(default_factory=dict)
    left_at: dict[str, float] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)
    stopping: Mapping[str, float] = field(default_factory=dict)
    moving: set[str] = field(default_factory=set)

    def are_stopping(self, now: float) -> bool:
        """Whether the next round waits for nodes that leave, as far as this node knows."""
        return any(until > now for until in self.stopping.values())

    def missing(self, nodes: Collection[str]) -> dict[str, tuple[JobEventKind, str]]:
        """Return those of `nodes` that have left or were lost, and why."""
        gone, lost = self.gone, self.lost
        return {node: (JobEventKind.LOST, lost[node]) for node in nodes if node in lost} | {
            node: (JobEventKind.LEFT, gone[node]) for node in nodes if node in gone
        }

    def watch(self, nodes: Collection[str]) -> None:
        """Watch these nodes only; called by the leader's routine."""
        self.watched = frozenset(nodes)

    def watch_also(self, nodes: Collection[str]) -> None:
        """Watch these nodes, too; called by the leader's routine."""
        self.watched |= frozenset(nodes)

    def note_losses(self, reasons: Mapping[str, str]) -> bool:
        """Replace the lost nodes, and why; return whether anything has changed."""
        previous, self.lost = self.lost, dict(reasons)
        return previous != self.lost

    def note_arrival(self, node: str) -> None:
        """Note that a node has announced itself, whatever the last heartbeats showed."""
        self.lost = {other: why for other, why in self.lost.items() if other != node}

    def note_departure(self, node: str, reason: str, now: float) -> None:
        """Note that a node has announced its departure."""
        self.left_at.setdefault(node, now)
        self.gone[node] = reason


@dataclass
class Participation:
    """This node's part in the job: what the agent wants, and what the node has got.

    Args:
        wants_round: whether the agent waits for a round.
        is_active: whether the agent runs, or may run, the round of `place`.
        place: the node's place in its last round of this incarnation.
        former_place: its place in an earlier incarnation, which it asks for again.
        has_succeeded: whether the workers of the round of `place` have succeeded.
        succeeded: when those of them that have succeeded ended, by global rank, in seconds since
            the epoch.
        joined: the round that the node has joined, and its ticket.
        leaving: why the node leaves; empty while it stays.
        notices: the signals that it has passed on and not yet read back, each with the version of
            the state at that time.
    """

    wants_round: bool = False
    is_active: bool = False
    place: RoundPlace | None = None
    former_place: RoundPlace | None = None
    has_succeeded: bool = False
    succeeded: Mapping[int, float] = field(default_factory=dict)
    joined: tuple[int, int] | None = None
    leaving: str = ""
    notices: dict[int, int] = field(default_factory=dict)

    def reset(self) -> None:
        """Start without a place in a job that was just found."""
        self.former_place, self.place = self.place or self.former_place, None
        self.has_succeeded, self.succeeded = False, {}
        self.joined = None
        self.notices.clear()


@dataclass
class WriterRequests:
    """Requests for the writer, in order; none is accepted after the last."""

    is_closing: bool = False
    _requests: deque[Request] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request, *, is_last: bool = False) -> None:
        """Append a request."""
        self._requests.append(request)
        self.is_closing |= is_last

    def next(self) -> Request | None:
        """Remove and return the next request; None if there is none."""
        return self._requests.popleft() if self._requests else None


class AgentNews:
    """What the agent has to know: changes, the verdict, and why this node cannot continue.

    Args:
        lock: the membership's lock; threads that wait on it are woken.
        wake_agent: wakes the agent; called with or without the lock.
    """

    def __init__(self, lock: threading.Condition, wake_agent: Callable[[], None]) -> None:
        self.verdict: RecordedVerdict | None = None
        self.is_past = False  # the job was over before this node joined
        self.error: BaseException | None = None
        self.wake_agent = wake_agent
        self._lock = lock
        self._changes: list[MembershipChange] = []
        self.losses: list[MembershipChange] = []  # while the node waits for a round

    def add(self, change: MembershipChange) -> None:
        """Add a change and wake the agent."""
        self._changes.append(change)
        self._lock.notify_all()
        self.wake_agent()

    def take(self) -> list[MembershipChange]:
        """Return the changes since the last call."""
        with self._lock:
            taken, self._changes = self._changes, []
        return taken

    def take_losses(self) -> list[MembershipChange]:
        """Return the nodes lost since the last call, while this one waited for a round."""
        with self._lock:
            losses, self.losses = self.losses, []
        return losses


class WakePipe:
    """A descriptor that becomes readable to wake the agent. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may interrupt its owner
        self._ends: tuple[int, int] | None = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """The descriptor to poll; -1 after `close`."""
        return -1 if self._ends is None else self._ends[0]

    def wake(self) -> None:
        """Make it readable."""
        with self._lock, contextlib.suppress(BlockingIOError):
            if self._ends is not None:
                os.write(self._ends[1], b"\0")

    def clear(self) -> None:
        """Read everything from it."""
        with self._lock, contextlib.suppress(BlockingIOError):
            if self._ends is not None:
                os.read(self._ends[0], 4096)

    def close(self) -> None:
        """Close both ends; may be called twice."""
        with self._lock:
            ends, self._ends = self._ends, None
            for end in ends or ():
                os.close(end)


class ReservedPort:
    """The port that this node reserves for the workers' store, in case it gets rank 0.

    Args:
        within: the first and the last port that may be reserved; None for any.
    """

    def __init__(self, within: tuple[int, int] | None) -> None:
        self._within = within
        self._held: HeldPort | None = None

    def hold(self) -> int:
        """Reserve another port instead of the previous one, and return its number."""
        port = HeldPort.any(self._within)
        self.release()
        self._held = port
        return port.port

    def release(self) -> None:
        """Release the port, if there is one."""
        if self._held is not None:
            self._held.close()
