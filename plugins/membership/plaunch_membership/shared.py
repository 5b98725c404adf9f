"""The small objects that the routines of a node share; each routine owns the rest.

The lock of the membership guards all of them. What is read without it is one attribute, which is
replaced and not changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from plaunch_membership.operations import Routine

if TYPE_CHECKING:
    import threading

    from plaunch.rendezvous import MembershipChange

    from plaunch_membership.keys import Keys
    from plaunch_membership.node import RoundPlace
    from plaunch_membership.state import JobState, RecordedVerdict

Request = Callable[[], Routine[object]]


@dataclass(frozen=True)
class KnownJob:
    """One incarnation of a job, as far as this node has read it.

    The writer finds the job; from then on the watcher replaces what is known of it.

    Args:
        incarnation: counts how often this node has started again.
        keys: where its records are.
        record: what the store holds under the run id.
        state: the last one that was read; None before the job is found.
        state_record: what the store holds for it.
    """

    incarnation: int
    keys: Keys
    record: bytes = b""
    state: JobState | None = None
    state_record: bytes = b""


@dataclass
class Peers:
    """The other nodes of one incarnation. Heartbeats and states tell of them, and the leader reads.

    Args:
        watched: the nodes that a leader watches; only its routine sets them.
        lost: nodes that were given up, and why.
        gone: nodes that have said that they go, and why.
        moving: nodes that were seen to be alive.
    """

    watched: frozenset[str] = frozenset()
    lost: dict[str, str] = field(default_factory=dict)
    gone: dict[str, str] = field(default_factory=dict)
    moving: set[str] = field(default_factory=set)


@dataclass
class Part:
    """This node's part in the job: what the agent wants, and what the node has got.

    Args:
        wants_round: whether the agent waits for a round.
        is_active: whether it runs, or may run, the round of `place`.
        place: in the last round of this incarnation that the node was in.
        former_place: in an incarnation before; a wish, and no claim.
        has_succeeded: whether the workers of the round of `place` have.
        succeeded: when those workers of it ended that have, by global rank, in seconds since the
            epoch.
        joined: the round that the node wants to be in, and its ticket.
        leaving: why the node goes, once it does.
        notices: the signals that it has passed on and not heard of yet, each with the version of
            the state that it knew then.
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

    def begin_anew(self) -> None:
        """Have no part in a job that was just found."""
        self.former_place, self.place = self.place or self.former_place, None
        self.has_succeeded, self.succeeded = False, {}
        self.joined = None
        self.notices.clear()


@dataclass
class RequestQueue:
    """Tasks for the writer, in order; nothing is done after the last."""

    is_closing: bool = False
    _requests: deque[Request] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request, *, is_last: bool = False) -> None:
        """Have something done."""
        self._requests.append(request)
        self.is_closing |= is_last

    def next(self) -> Request | None:
        """Take the next task; None if there is none."""
        return self._requests.popleft() if self._requests else None


class News:
    """News for the agent: changes, how the job has ended, and why it cannot go on.

    Args:
        lock: of the membership; whoever waits on it is woken.
    """

    def __init__(self, lock: threading.Condition) -> None:
        self.verdict: RecordedVerdict | None = None
        self.is_past = False  # the job was over before this node came
        self.error: BaseException | None = None
        self.wake_agent: Callable[[], None] = _do_nothing  # set by whoever runs the routines
        self._lock = lock
        self._changes: list[MembershipChange] = []
        self.losses: list[MembershipChange] = []  # while the node waits for a round

    def add(self, change: MembershipChange) -> None:
        """Tell of a change."""
        self._changes.append(change)
        self._lock.notify_all()
        self.wake_agent()

    def take(self) -> list[MembershipChange]:
        """The changes since the last call."""
        with self._lock:
            taken, self._changes = self._changes, []
        return taken

    def take_losses(self) -> list[MembershipChange]:
        """The nodes that were lost since the last call, while this one waited for a round."""
        with self._lock:
            losses, self.losses = self.losses, []
        return losses


def _do_nothing() -> None:
    """Wake nobody: no agent listens yet."""
