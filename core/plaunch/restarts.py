"""What follows a failure of the job: the contract of restart policies, and budgets of restarts."""

from __future__ import annotations

import enum
import math
from collections import deque
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from plaunch.durations import LONGEST, Duration
from plaunch.errors import UsageError
from plaunch.numbers import digits, quote
from plaunch.values import Value, plain_dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from plaunch.process import ProcessFailure

__all__ = [
    "Cause",
    "Decided",
    "Decision",
    "Failure",
    "RestartAction",
    "RestartPolicy",
    "failure_of",
]


class Cause(str, enum.Enum):
    """The kind of a failure; some kinds have their own budget."""

    WORKER = "worker"  # a worker failed by itself
    OUT_OF_MEMORY = "oom"  # the kernel killed a worker for lack of memory
    NODE = "node"  # a node was lost
    HANG = "hang"  # no worker of the job made progress
    HEALTH = "health"  # a health check failed

    @property
    def is_outside(self) -> bool:
        """Whether its origin is outside of the job: a restart is then not counted by default."""
        return self in (Cause.NODE, Cause.HEALTH)


@plain_dataclass
class Failure(Value):
    """One failure of the job, which ended a round; the same on all nodes.

    Args:
        cause: its kind.
        rank: the global rank of the worker that failed first; negative if it was a launcher.
        host: the host of that worker.
        exitcode: its exit code, or -n if signal n ended it.
        exception: the type of its exception, as `ValueError` or `pkg.ConfigError`; empty if
            unknown.
        message: its exception with the type, or how it ended; one line, as `ValueError: bad shape`
            or `exit code 17`.
        place: the last line of the user's own code in its traceback, as `train.py:12`; empty if
            unknown.
        last_lines: the last lines of its stderr, oldest first.
        is_retryable: whether another start may help, according to its error file (torch's
            `retryability`); None if the file does not say.
        retry_after: seconds to wait, according to its error file (`retry_after` beside that); None
            if the file does not say.
        started: seconds between the start of the workers and the failure; a billion if the node
            that decides has joined later, and does not know.
        time: when it began, in seconds since the epoch.
        attempt: how many restarts the job had used, without those that are not counted.
        failures: all workers that failed by themselves, by global rank, as far as known.
        missing_nodes: how many nodes another round has to wait for, after a node was lost: fewer
            are left than the job needs, and none waits for a place.
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
    missing_nodes: int = 0


class RestartAction(str, enum.Enum):
    """What follows a failure."""

    RESTART = "restart"
    STOP = "stop"


@plain_dataclass
class Decision(Value):
    """What follows a failure, for all nodes of the job.

    Args:
        action: another round, or the end of the job.
        reason: why, in one sentence for the user, who reads it behind what has happened. That of a
            restart should say so, and mention a delay.
        delay: seconds from the end of the last worker to the next round.
        without: hosts that are excluded from the next rounds.
        costs: whether a restart counts as one of `--max-restarts`.

    Raises:
        TypeError: an argument has another type.
        UsageError: the delay is not a number of seconds that can be waited for.
    """

    action: RestartAction
    reason: str = ""
    delay: float = 0.0
    without: Sequence[str] = ()
    costs: bool = True

    def __post_init__(self) -> None:
        wrong = ""
        if not isinstance(self.action, RestartAction):
            wrong = f"action={self.action!r}, not a RestartAction"
        elif not isinstance(self.reason, str):
            wrong = f"reason={self.reason!r}, not a text"
        elif not (isinstance(self.without, (tuple, list)) and _are_texts(self.without)):
            wrong = f"without={self.without!r}, not names of hosts"
        elif not isinstance(self.costs, bool):
            wrong = f"costs={self.costs!r}, not a bool"
        if wrong:
            raise TypeError(f"a Decision with {wrong}")
        Duration(may_be_zero=True).check(self.delay, "the delay")

    @property
    def is_restart(self) -> bool:
        """Whether there is another round."""
        return self.action is RestartAction.RESTART

    def among(self, hosts: Collection[str]) -> Decision:
        """The decision for a job with nodes on these hosts, which does not exclude all of them."""
        if not self.without or not set(hosts) <= set(self.without):
            return self
        reason = f"{self.reason}; but the job cannot go on without it"
        return replace(self, reason=reason.lstrip("; "), without=())


def _are_texts(values: Sequence[object]) -> bool:
    return all(isinstance(value, str) for value in values)


@plain_dataclass
class Decided(Value):
    """An earlier failure, and the decision about it."""

    failure: Failure
    decision: Decision

    def without_workers(self) -> Decided:
        """The same with the first failure only, which takes little memory."""
        return replace(self, failure=replace(self.failure, failures={}))


MAX_DECISIONS = 1000  # that a policy receives; a service may fail for years
_MAX_WORKERS = 10_000  # whose failures are kept with the decisions; each takes about a kilobyte


class DecisionHistory:
    """The latest decisions about failures, oldest first.

    Of older decisions only the first failure is known, so that the memory of a large job does not
    grow with each restart.

    Args:
        decisions: those known from the start.
        max_decisions: how many are kept.
        max_workers: of how many workers the failures are kept.
    """

    def __init__(
        self,
        decisions: Iterable[Decided] = (),
        *,
        max_decisions: int = MAX_DECISIONS,
        max_workers: int = _MAX_WORKERS,
    ) -> None:
        self._decisions: deque[Decided] = deque(decisions, max_decisions)
        self._max_workers = max_workers

    def append(self, decided: Decided) -> None:
        """Add the latest decision."""
        self._decisions.append(decided)
        workers = 0
        for index in range(len(self._decisions) - 1, -1, -1):
            count = len(self._decisions[index].failure.failures)
            workers += count
            if count and workers > self._max_workers:
                self._decisions[index] = self._decisions[index].without_workers()

    def latest(self) -> tuple[Decided, ...]:
        """All that are kept."""
        return tuple(self._decisions)


@runtime_checkable
class RestartPolicy(Protocol):
    """Decides what follows failures. Plugins implement it.

    It is called once for each failure, for the whole job: on the node that leads, or on the only
    one. Another node may lead at the next failure, so a policy must not keep state between calls.
    It may depend on its options, which are the same on all nodes, and on its arguments. If it
    raises, or does not return within a second, the error names it, and the policy `standard`
    decides.
    """

    def decide(self, failure: Failure, history: Sequence[Decided]) -> Decision:
        """What follows `failure`; `history` has all earlier failures that are known, in order.

        Their `failures` are known for the latest ones, of 10,000 workers together, and only on the
        node that has decided about them.
        """


# --- budgets --------------------------------------------------------------------------------------

_FORM = "a number of restarts, such as 3, with others for causes behind it, as in 3,hang:1,oom:0"
_UNLIMITED = "inf"


def parse_budgets(text: str) -> tuple[int, dict[str, float]]:
    """Parse `3,hang:1,node:inf`: the number of restarts, and those of causes with their own.

    Raises:
        ValueError: the text has another form, names no cause, or names one twice.
    """
    first, *others = text.split(",")
    total = digits(first)
    if total is None:
        raise ValueError(f"{quote(text)} is not {_FORM}")
    found: dict[str, float] = {}
    for item in others:
        cause, _, count = item.partition(":")
        number = math.inf if count == _UNLIMITED else digits(count)
        if number is None:
            raise ValueError(
                f"{quote(item)} in {quote(text)} is not CAUSE:NUMBER or CAUSE:inf; write {_FORM}"
            )
        if cause in found:
            raise ValueError(f"{quote(text)} has two numbers for cause {cause!r}")
        found[cause] = number
    _check_causes(found)
    return total, found


def check_budgets(budgets: Mapping[str, object]) -> None:
    """Check numbers of restarts by cause.

    Raises:
        UsageError: one of them is invalid.
    """
    name = "max_restarts_by_cause (--max-restarts)"
    try:
        _check_causes(budgets)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None
    for cause, number in budgets.items():
        if number != math.inf and not (type(number) is int and number >= 0):
            raise UsageError(
                f"{name} is {number!r} for {cause!r}, which is not a number of restarts"
            )


def ends_with_lost_node(
    total: int, budgets: Mapping[str, float], min_nodes: int, max_nodes: int
) -> bool:
    """Whether a job ends when it has lost a node that no other one can replace at once.

    So it is under torchrun. A job with a fixed number of nodes and without restarts does not wait
    for a node that may never come, unless the numbers of restarts say what follows a lost node.

    Args:
        total: `--max-restarts`.
        budgets: the numbers of restarts of causes with their own.
        min_nodes: how few nodes the job needs.
        max_nodes: how many it has at most.
    """
    return total == 0 and min_nodes == max_nodes and Cause.NODE.value not in budgets


def format_budgets(total: int, budgets: Mapping[str, float]) -> str:
    """Format them as users write them: `3,hang:1,oom:0`."""
    return ",".join([str(total), *(f"{cause}:{budgets[cause]}" for cause in sorted(budgets))])


def _check_causes(budgets: Mapping[str, object]) -> None:
    known = [cause.value for cause in Cause]
    for cause in budgets:
        if cause not in known:
            from plaunch._names import suggest  # errors only

            hint = suggest(str(cause), known)
            raise ValueError(f"{cause!r} is not a cause of failures{hint}")


# --- failures as policies see them ----------------------------------------------------------------


def failure_of(
    failures: Mapping[int, ProcessFailure],
    first: int,
    *,
    started: float,
    attempt: int,
    cause: Cause | None = None,
    missing_nodes: int = 0,
) -> Failure:
    """The failure of a job, for restart policies.

    Exception and place come from the worker's error file. Without one, they come from the last
    traceback among its last lines, if it exited as Python does after an exception.

    Args:
        failures: the workers that failed by themselves, by global rank; never empty.
        first: the rank that failed first.
        started: seconds between the start of the workers and the failure.
        attempt: how many restarts the job had used.
        cause: its kind; by default a failed worker, a hang, or lack of memory.
        missing_nodes: how many nodes another round has to wait for.
    """
    found = failures[first]
    if cause is None:
        cause = Cause.OUT_OF_MEMORY if found.oom_killed else Cause.WORKER
        cause = Cause.HANG if found.hung else cause
    traits = _traits_of(found)
    return Failure(
        cause=cause,
        rank=first,
        host=found.host,
        exitcode=found.exitcode,
        exception=found.raised.exception,
        message=found.brief,
        place=found.place,
        last_lines=tuple(found.last_lines),
        is_retryable=_truth(traits.get("retryability")),
        retry_after=_seconds(traits.get("retry_after")),
        started=started,
        time=found.began,
        attempt=attempt,
        failures=dict(failures),
        missing_nodes=missing_nodes,
    )


def _traits_of(failure: ProcessFailure) -> Mapping[str, Any]:
    traits = failure.error_file_data.get("errorTraits") if failure.has_reply else None
    # torch marks every worker without a reply as not retryable. That is not the worker's own
    # statement, and a launcher that is a worker itself copies it into its error file.
    is_own = isinstance(traits, dict) and traits.get("category") != "system_terminated_error"
    return traits if isinstance(traits, dict) and is_own else {}


def _truth(value: object) -> bool | None:
    return {"true": True, "false": False}.get(str(value).lower())


def _seconds(value: object) -> float | None:
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    if math.isnan(seconds) or seconds < 0 or isinstance(value, bool):
        return None
    return min(seconds, LONGEST)
