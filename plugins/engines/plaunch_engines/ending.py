"""How a job on an engine ends: pure functions of what is known of its nodes and of the command."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plaunch.errors import ExitCode
from plaunch.rendezvous import JobOutcome

from plaunch_engines.errors import NodesLostError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plaunch.errors import PlaunchError

_MAX_TEXT = 1 << 20  # characters of a failure


@dataclass(frozen=True, kw_only=True)
class AgentFailure:
    """The error with which an agent has ended.

    Args:
        text: the report.
        code: its exit code.
        is_first: whether the worker that failed first is one of this node.
        is_of_workers: whether workers have failed, and not the agent itself.
        is_consequence: whether it only says that other nodes or the store are gone, and the job's
            record does not say that the job has failed.
        reported_at: when, on the clock of the driver.
    """

    text: str
    code: int
    is_first: bool = False
    is_of_workers: bool = False
    is_consequence: bool = False
    reported_at: float = 0.0


class FailureRecords:
    """The records of an agent's failures, whose texts come in parts.

    Attributes:
        last: the last failure that is complete, or None.
    """

    def __init__(self) -> None:
        self.last: AgentFailure | None = None
        self._text = ""  # of the next one

    @property
    def is_too_long(self) -> bool:
        """Whether the text of a failure does not end."""
        return len(self._text) > _MAX_TEXT

    def add(self, record: Mapping[str, Any], now: float) -> None:
        """Add a record, the last of which has the other fields of a failure."""
        self._text += record["text"]
        if record["kind"] == "failure":
            fields = {**record, "text": self._text, "reported_at": now}
            del fields["kind"]
            self.last, self._text = AgentFailure(**fields), ""


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """What is known of one node.

    Args:
        name: of the node.
        end: how it was lost, left or excluded, for messages.
        has_begun: whether its agent has got its settings.
        has_ended: whether its agent has ended, and all that it had written was read.
        ended_at: when it has reported its end, or was found to have ended; on the driver's clock.
        code: the exit code that it has reported; None if it has reported none.
        has_succeeded: whether it has reported that all of its workers have succeeded in its last
            round.
        verdict: how the job ended according to the job's own record, as this node has reported it;
            None if it does not know.
        failure: the error that it has reported, if any.
        round: the last round in which its workers were started; None before the first. It is 0 if
            the rendezvous does not know the whole job, and each agent counts for itself.
        size: how many nodes that round had.
        round_at: when it has reported that round.
        is_replaced: whether another node was started in its place.
    """

    name: str
    end: str = ""
    has_begun: bool = True
    has_ended: bool = False
    ended_at: float = math.inf
    code: int | None = None
    has_succeeded: bool = False
    verdict: JobOutcome | None = None
    failure: AgentFailure | None = None
    round: int | None = None
    size: int = 0
    round_at: float = 0.0
    is_replaced: bool = False

    @property
    def is_excluded(self) -> bool:
        """Whether the job continues without it, because it hurts the job."""
        return self.code == ExitCode.NODE_EXCLUDED

    @property
    def is_silenced(self) -> bool:
        """Whether it has ended because it got no sign of the command."""
        return self.code == ExitCode.COMMAND_SUSPENDED and self.verdict is None

    @property
    def is_lost(self) -> bool:
        """Whether it has ended without the job's consent, so that another node may replace it."""
        is_without_report = self.has_ended and self.code is None
        return is_without_report or self.is_excluded or self.is_silenced

    @property
    def has_left(self) -> bool:
        """Whether it was ended by itself, as by a signal to its agent; the job may continue."""
        is_reported = self.code not in (None, ExitCode.OK, ExitCode.NODE_EXCLUDED)
        return is_reported and self.failure is None and self.verdict is None

    @property
    def is_result(self) -> bool:
        """Whether its report is a result of the job, which then has no other."""
        return self.code is not None and not (self.is_lost or self.has_left)


@dataclass(frozen=True, kw_only=True)
class CommandFacts:
    """Why the command ends the job, if it does.

    Args:
        signum: the first stop signal that it got.
        signalled_at: when, on the driver's clock.
        error: why it has given up, if it has.
        error_at: when that happened which it gives up for.
        error_code: the exit code for that.
    """

    signum: int | None = None
    signalled_at: float = math.inf
    error: PlaunchError | None = None
    error_at: float = math.inf
    error_code: int = 0


@dataclass(frozen=True)
class Ending:
    """The result of a job.

    Args:
        code: the exit code.
        failure: the report that it comes from, if it does.
        error: the error of the command that it comes from, if it does.
        lost: the nodes whose loss has led to that report.
    """

    code: int
    failure: AgentFailure | None = None
    error: PlaunchError | None = None
    lost: Sequence[NodeFacts] = ()


def conclude(nodes: Sequence[NodeFacts], command: CommandFacts) -> Ending:
    """Return how a job ended whose agents have all ended. docs/engines.md has the table."""
    if has_succeeded(nodes):
        return Ending(ExitCode.OK)
    failure = _first_failure(nodes)
    if failure is not None and not failure.is_consequence:
        return Ending(failure.code, failure)
    gone = [node for node in _last_round(nodes) if node.is_lost or node.has_left]
    causes = [(command.error_at, Ending(command.error_code, error=command.error))]
    if command.signum is not None:
        causes.append((command.signalled_at, Ending(128 + command.signum)))
    if failure is not None:
        # It began when the node or the store was lost that it misses.
        began = min([failure.reported_at, *(node.ended_at for node in gone)])
        causes.append((began, Ending(failure.code, failure, lost=gone)))
    at, ending = min(causes, key=lambda cause: cause[0])
    if at < math.inf:
        return ending
    codes = [(node.ended_at, node.code) for node in nodes if node.code and not node.is_lost]
    if codes:
        return Ending(min(codes)[1])
    ends = "; ".join(node.end for node in nodes if node.end and not node.is_replaced)
    error = NodesLostError(ends or "no agent has reported how the job ended")
    return Ending(error.exit_code, error=error)


def is_over(nodes: Sequence[NodeFacts]) -> bool:
    """Whether an agent has reported a result of the job, so that no other node is of use."""
    return any(node.is_result for node in nodes)


def has_succeeded(nodes: Sequence[NodeFacts]) -> bool:
    """Whether all nodes of the last round have succeeded, or the job's record says so."""
    if any(node.verdict is JobOutcome.SUCCEEDED for node in nodes):
        return True
    members = _last_round(nodes)
    if not members:
        return False
    newest = max(members, key=lambda node: node.round_at)
    return sum(node.has_succeeded for node in members) >= newest.size


def _last_round(nodes: Sequence[NodeFacts]) -> list[NodeFacts]:
    """Return the nodes of the newest round in which workers were started."""
    rounds = [node.round for node in nodes if node.round is not None]
    return [node for node in nodes if rounds and node.round == max(rounds)]


def _first_failure(nodes: Sequence[NodeFacts]) -> AgentFailure | None:
    """Return the report that describes best what failed first."""
    failures = [
        node.failure
        for node in nodes
        if node.failure is not None and not (node.is_excluded or node.is_silenced)
    ]
    return max(
        failures,
        key=lambda one: (not one.is_consequence, one.is_first, one.is_of_workers),
        default=None,
    )
