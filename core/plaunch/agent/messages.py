"""The messages of an agent: why it stops workers, what follows, and what it waits for."""

from __future__ import annotations

import logging
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

from plaunch.agent.states import Outcome, Phase, RequestKind, RestartReason, State
from plaunch.durations import format_duration
from plaunch.errors import RendezvousTimeoutError, one_line
from plaunch.process.failure import describe_early_ends, describe_failure, first_failure
from plaunch.rendezvous.api import ChangeKind, RendezvousHandler
from plaunch.texts import join_facts
from plaunch.values import Value, plain_dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from plaunch.agent.worker import RunResult
    from plaunch.process.failure import ProcessFailure
    from plaunch.rendezvous.api import MembershipChange
    from plaunch.rendezvous.job import JobRendezvous, JobRound

logger = logging.getLogger("plaunch")


@plain_dataclass
class StopReason(Value):
    """Why the agent stops its workers, or how the job ended.

    Args:
        text: a sentence.
        facts: what it says, each in the words in which nodes report that to each other; a later
            message leaves these out.
        has_next_round: whether it says what has led to the next round.
    """

    text: str = ""
    facts: Sequence[str] = ()
    has_next_round: bool = False

    @classmethod
    def of(cls, *facts: str) -> StopReason:
        """The reason that consists of these facts."""
        return cls(join_facts(*facts), facts)


NOTHING_LOGGED = StopReason()


def describe_decision(
    then: RestartReason | Outcome,
    state: State,
    why: StopReason,
    logged: StopReason = NOTHING_LOGGED,
) -> str:
    """One line about what happened and what follows; empty if there is nothing to report.

    Args:
        then: what follows.
        state: of the agent.
        why: what happened.
        logged: what has been logged about the last end of workers.
    """
    reason = why.text
    requested = describe_request(state)
    if then is Outcome.SUCCEEDED and state.is_asked_to_end:
        return (
            f"{requested}; the workers of this node have succeeded, and that stays its result; it "
            "does not wait for other nodes"
        )
    if then is RestartReason.REQUEST:
        return f"{requested}; all workers are restarted; this is not counted against --max-restarts"
    if then is Outcome.SIGNALLED:
        what = "no worker is running" if state.phase is Phase.DONE else "the workers are stopped"
        return f"{requested}; {what}"
    is_running = not state.has_succeeded and state.phase is not Phase.DONE
    stopping = "all workers are stopped" if is_running else ""
    if then is RestartReason.MEMBERSHIP:
        return f"{reason}; " + (f"{stopping}, and " if stopping else "") + "a new round begins"
    if then is Outcome.FAILED and (state.phase is Phase.DONE or set(why.facts) & set(logged.facts)):
        return ""  # the report that follows contains it
    if isinstance(then, Outcome) and then is not Outcome.ERROR:
        reason = f"the job ended: {reason}"
    return f"{reason}; {stopping}" if stopping else reason


def describe_delay(seconds: float, now: float) -> str:
    """What an agent waits for when the next round is delayed; `now` is the wall clock."""
    at = time.strftime("%H:%M:%S", time.localtime(now + seconds))
    return f"the time of the restart, {at} (--restart-delay, or a worker's retry_later)"


def describe_request(state: State) -> str:
    """What requests the end or a restart, and why, in a few words.

    A request for the end of the job reads the same on all of its nodes.
    """
    request = state.request
    if request is None:
        return f"{(state.asked_by or signal.SIGTERM).name} received"
    who, reason = request.who, request.reason
    if request.kind is RequestKind.STOP:
        who, reason = f"node {request.node or socket.gethostname()}", request.origin
    return f"{who} requests {REQUESTS[request.kind]} ({reason})"


REQUESTS = {
    RequestKind.STOP: "the end of the job",
    RequestKind.RESTART: "a restart",
    RequestKind.LEAVE: "that this node leave",
}


def describe_round(formed: JobRound, state: State, logged: StopReason = NOTHING_LOGGED) -> str:
    """One line about why a round was formed; empty if all of it has been logged.

    What the job decided after a failure is new; arrivals and departures that led to a round have
    been logged as changes.

    Args:
        formed: the round.
        state: of the agent before the round.
        logged: what has been logged about the end of the last round.
    """
    is_restart = formed.attempt > state.attempt
    if state.round < 0 or not (is_restart or state.then is RestartReason.FAILURE):
        return ""  # this node was not there, or has logged the change
    is_logged = logged.has_next_round or formed.reason in logged.facts
    what = "" if is_logged else formed.reason
    decision = formed.decision
    if is_restart and not (formed.reason or decision):
        decision = f"restart {formed.attempt} of {state.max_restarts}"
    return join_facts(what, decision)


def list_early_ends(
    succeeded: Mapping[int, float], failures: Mapping[int, ProcessFailure]
) -> list[str]:
    """Which workers of this node had succeeded before the first of these failures, in a line.

    Args:
        succeeded: when they ended, by global rank, in seconds since the epoch.
        failures: by global rank; may be empty.
    """
    if not failures:
        return []
    line = describe_early_ends(succeeded, first_failure(failures)[1].timestamp)
    return [line] if line else []


def describe_failures(result: RunResult) -> str:
    """Which worker failed first, and how, in a few words."""
    if not result.failures:
        return "the workers failed"
    rank, failure = first_failure(result.failures)
    if rank < 0:
        return failure.text  # the launcher's own
    others = f" (and {len(result.failures) - 1} more)" if len(result.failures) > 1 else ""
    early_ends = "".join(f"; {line}" for line in result.early_ends if failure.is_consequence)
    return f"{describe_failure(rank, failure)}{others}{early_ends}"


def stop_reason_of(result: RunResult) -> StopReason:
    """The reason to stop the workers of this node because some have failed."""
    text = describe_failures(result)
    if not result.failures:
        return StopReason.of(text)
    rank, failure = first_failure(result.failures)
    return StopReason(text, (text, describe_failure(rank, failure)))


_DESCRIPTIONS = {
    ChangeKind.ARRIVED: ("node {} arrived", "a node arrived"),
    ChangeKind.LEFT: ("node {} left", "a node left"),
    ChangeKind.LOST: ("node {} was lost", "a node was lost"),
    ChangeKind.FAILED: ("workers of node {} failed", "workers of another node failed"),
    ChangeKind.RESTART: ("node {} requests a restart", "another node requests a restart"),
    ChangeKind.UNREACHABLE: (
        "node {} cannot be reached any more",
        "the other nodes cannot be reached any more",
    ),
}


def describe_change(change: MembershipChange) -> str:
    """What happened to which node, and why, in a sentence."""
    if change.kind is ChangeKind.FAILED and change.reason:
        return change.reason  # which names the worker and its host
    with_name, without = _DESCRIPTIONS[change.kind]
    node = change.node if change.index is None else f"{change.node} (index {change.index})"
    text = with_name.format(node) if change.node else without
    return f"{text}: {change.reason}" if change.reason else text


_FIRST_LINE = 3.0  # seconds of waiting before the first line
_LIVE_INTERVAL = 1.0  # seconds between two changes of a live line
_MOST_SILENCE = 60.0  # seconds between two plain lines; each pause is twice the one before


def read_wait(handler: Any) -> str:
    """What `next_rendezvous` of `handler` waits for, in a few words; raises what the handler does.

    A handler that does not derive from plaunch's class may have no such method.
    """
    describe = getattr(handler, "describe_wait", None)
    return RendezvousHandler.describe_wait(handler) if describe is None else str(describe())


def describe_wait(handler: Any, read: Callable[[Any], str] = read_wait) -> str:
    """What `next_rendezvous` of `handler` waits for, in a few words; never raises its errors."""
    try:
        return read(handler)
    except Exception as error:  # noqa: BLE001 - a backend's bug must not cost the job
        return f"the rendezvous, which cannot say for what ({one_line(error)})"


class WaitReporter:
    """Reports each wait in a live line, or in log lines that become rarer.

    Args:
        start_timeout: seconds from now until the first worker must run, or None for no bound.
        show: shows a line and replaces the one it showed before; an empty text clears it. Its
            second argument is the end of the line, which is never cut. None if lines cannot be
            replaced: they are logged then.
        read: calls `describe_wait` of a handler; may limit its time.
        clock: seconds that never go back.
        wall_clock: seconds since the epoch, for people.
    """

    def __init__(
        self,
        start_timeout: float | None = None,
        *,
        show: Callable[[str, str], None] | None = None,
        read: Callable[[Any], str] = read_wait,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._start_timeout = start_timeout
        self._read = read
        self._show = show
        self._clock = clock
        self._wall_clock = wall_clock
        now = clock()
        self._start_by = None if start_timeout is None else now + start_timeout
        self._since = now
        self._since_time = 0.0
        self._silence = _FIRST_LINE
        self._speak_at = now

    def begin(self) -> None:
        """A wait begins."""
        self._since = self._clock()
        self._since_time = self._wall_clock()
        self._silence = _FIRST_LINE
        self._speak_at = self._since + self._silence

    def end(self) -> None:
        """The wait is over."""
        if self._show is not None:
            self._show("", "")

    def workers_started(self) -> None:
        """Workers run: `start_timeout` no longer applies."""
        self._start_by = None

    def pause(self) -> float:
        """Seconds until `report` has something to do."""
        until = self._speak_at if self._start_by is None else min(self._speak_at, self._start_by)
        return max(until - self._clock(), 0.0)

    def describe(self, handler: RendezvousHandler | JobRendezvous) -> str:
        """What `next_rendezvous` of `handler` waits for; never raises its errors."""
        return describe_wait(handler, self._read)

    def report(self, handler: RendezvousHandler | JobRendezvous) -> RendezvousTimeoutError | None:
        """Report what the agent waits for, if it is time; return the error if the wait must end."""
        now = self._clock()
        if self._start_by is not None and now >= self._start_by:
            self.end()
            return RendezvousTimeoutError(
                f"no worker of this node could be started within {self._start_timeout:g} s "
                f"(--start-timeout); it was waiting for {self.describe(handler)}"
            )
        if now < self._speak_at:
            return None
        waited = format_duration(round(now - self._since), " ")
        text = f"waiting for {self.describe(handler)}"
        if self._show is not None:
            self._show(text, f" ({waited}; Ctrl-C ends it)")
            self._speak_at = now + _LIVE_INTERVAL
            return None
        since = time.strftime("%H:%M:%S", time.localtime(self._since_time))
        logger.info("%s (since %s, for %s; Ctrl-C ends it)", text, since, waited)
        self._silence = min(2 * self._silence, _MOST_SILENCE)
        self._speak_at = now + self._silence
        return None
