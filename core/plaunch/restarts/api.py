"""The contract of restart policies: what they are told, and what they decide."""

from __future__ import annotations

import enum
from dataclasses import field, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from plaunch.values import Value, plain_dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from plaunch.process import ProcessFailure


class Cause(str, enum.Enum):
    """What kind of failure it is; some have a budget of their own."""

    WORKER = "worker"  # a worker failed by itself
    OUT_OF_MEMORY = "oom"  # the kernel ended a worker because memory had run out
    NODE = "node"  # a node was lost
    HANG = "hang"  # no worker of the job went on
    HEALTH = "health"  # a health check failed

    @property
    def is_outside(self) -> bool:
        """Whether it happens to the job from outside: a restart then costs nothing by itself."""
        return self in (Cause.NODE, Cause.HEALTH)


@plain_dataclass
class Failure(Value):
    """One failure of the job, which ended a round; the same on all nodes.

    Args:
        cause: what kind it is.
        rank: the global rank of the worker that failed first; negative if it was a launcher.
        host: the host of that worker.
        exitcode: its exit code, or -n if signal n ended it.
        exception: the type of its exception, as `ValueError` or `pkg.ConfigError`; empty if it said
            none.
        message: what it said, with the type of its exception, or how it ended; one line, as
            `ValueError: bad shape` or `exit code 17`.
        place: the last line of the user's own code in its traceback, as `train.py:12`; empty if
            that is not known.
        last_lines: what it last wrote to stderr, oldest first.
        is_retryable: whether it said, in its error file, that another start may help (torch's
            `retryability` there); None if it said nothing about it.
        retry_after: seconds that it asked there to be waited (`retry_after` beside it); None if it
            did not.
        started: seconds between the start of the workers and the failure; a billion if whoever
            decides came later, and does not know.
        time: when it began, in seconds since the epoch.
        attempt: how many restarts the job had used, those that cost nothing left out.
        failures: all workers that failed by themselves, by global rank, as far as they are told.
    """

    cause: Cause
    rank: int
    host: str
    exitcode: int
    exception: str = ""
    message: str = ""
    place: str = ""
    last_lines: Sequence[str] = ()
    is_retryable: bool | None = None
    retry_after: float | None = None
    started: float = 0.0
    time: float = 0.0
    attempt: int = 0
    failures: Mapping[int, ProcessFailure] = field(default_factory=dict)


class RestartAction(str, enum.Enum):
    """What follows a failure."""

    RESTART = "restart"
    STOP = "stop"


@plain_dataclass
class Decision(Value):
    """What follows a failure, for all nodes of the job.

    Args:
        action: another round, or the end of the job.
        reason: why, in one sentence; shown to the user as it is, so it should name a delay.
        delay: seconds to wait before the next round, from the end of the last worker on.
        without: hosts that the next rounds do without.
        costs: whether a restart counts as one of `--max-restarts`.
    """

    action: RestartAction
    reason: str = ""
    delay: float = 0.0
    without: Sequence[str] = ()
    costs: bool = True

    @property
    def is_restart(self) -> bool:
        """Whether there is another round."""
        return self.action is RestartAction.RESTART

    def among(self, hosts: Collection[str]) -> Decision:
        """The same for a job with nodes on these hosts: it does not go on without all of them."""
        if not self.without or not set(hosts) <= set(self.without):
            return self
        reason = f"{self.reason}; but the job cannot go on without it"
        return replace(self, reason=reason.lstrip("; "), without=())


@plain_dataclass
class Decided(Value):
    """An earlier failure, and what was decided."""

    failure: Failure
    decision: Decision


@runtime_checkable
class RestartPolicy(Protocol):
    """Decides what follows failures. Plugins implement it.

    It is asked once for each failure, for the whole job: on the node that leads, or on the only
    one. Another node may lead at the next failure, so it must not keep anything between calls:
    all that it may depend on are its options, which are the same on all nodes, and what it is
    given. One that raises, or does not answer within a second, is named, and the policy `standard`
    decides.
    """

    def decide(self, failure: Failure, history: Sequence[Decided]) -> Decision:
        """What follows `failure`; `history` are all earlier ones that are known, oldest first."""
