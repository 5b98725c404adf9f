"""Finds the job of a run id, or starts it."""

from __future__ import annotations

import logging
import math
import re
from typing import TYPE_CHECKING, NamedTuple

from plaunch.errors import RendezvousClosedError
from plaunch.rendezvous import JobOutcome
from plaunch.texts import printable

from plaunch_membership import transitions
from plaunch_membership.keys import Keys, job_key, newest_key, tickets
from plaunch_membership.operations import Add, Batch, CompareSet, MultiGet, Routine, Set, Sleep
from plaunch_membership.records import MAX_REFUSAL, RecordError
from plaunch_membership.state import (
    JobPhase,
    JobState,
    describe_outcome,
    describe_verdict,
    verdict_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from plaunch_membership.membership import Membership
    from plaunch_membership.records import StoreRecord
    from plaunch_membership.state import RecordedVerdict

_log = logging.getLogger("plaunch")

DEFAULT_RUN_ID = "none"  # torchrun's
MAX_COMMAND = 400  # characters of a command in the record of a job
_SECRET = re.compile(r"(?i)token|secret|passw|api.?key|credential")
_WITHHELD = "***"
_VERSION = re.compile(rb"[0-9]{1,18}")
_TWO_JOBS = "; if these are two jobs, give each an --rdzv-id and an --rdzv-endpoint of its own"
_LEASE_MARGIN = 1.0  # seconds that a store may take to expire a lease
_LONGEST_LEASE = 600.0  # seconds; limits how long a node waits until it is refused


class SettingMismatch(NamedTuple):
    """A setting that must be the same on all nodes, and differs.

    Args:
        here: its name and its value on this node: `"--max-restarts=3"`.
        there: its value on the node that started the job: `"1"`.
    """

    here: str
    there: str


class JobLookup:
    """Finds the current incarnation of a job, and compares its settings with this node's.

    Args:
        membership: this node's membership.
        make_name: returns a unique name for a new incarnation.
    """

    def __init__(self, membership: Membership, make_name: Callable[[], str]) -> None:
        self._membership = membership
        self._make_name = make_name

    def open(self) -> Routine[None]:
        """Find the job, or start it.

        Raises:
            RendezvousClosedError: the job is over, or refuses this node.
            RendezvousStateError: the store holds an invalid record.
        """
        identity = self._membership.identity
        key = job_key(identity.run_id)
        while True:
            held, record, keys, state, state_record = yield from self._find_or_start()
            if state.phase is JobPhase.OVER and state.verdict is not None:
                if keys.incarnation != self._membership.follows:
                    if self._is_brought_back(state.verdict):
                        break
                    self._check_verdict(state.verdict)
            elif (
                state.phase is not JobPhase.REPLACED
                and keys.incarnation not in self._membership.past
            ):
                mismatches = self._compare(record)
                if not mismatches:
                    self._compare_arguments(record)
                    break
                if (yield from self._is_alive(keys, state)):
                    yield from self._report_refusal(keys, state, mismatches)
                    raise RendezvousClosedError(self._describe_refusal(record, mismatches))
                _log.warning(
                    "run id %r was used before by a job that has no live nodes left; the job "
                    "starts again",
                    identity.run_id,
                )
            yield CompareSet(key, held, self._make_job_record())
        self._membership.enter_job(keys, state, job_record=held, state_record=state_record)
        verdict = self._membership.news.verdict
        if verdict is not None and not state.has_ended:
            # The watcher has read it in the incarnation before, while this routine looked for the
            # job that the store had lost.
            yield from self._bring_back(verdict)

    def restore(self, verdict: RecordedVerdict) -> Routine[None]:
        """Bring back the verdict of a job that the store has lost, unless another node has.

        A job that is over stays over: nodes that have not read the verdict would start it again.
        """
        membership = self._membership
        held, _, keys, state, state_record = yield from self._find_or_start()
        membership.part.is_active = False
        membership.enter_job(keys, state, job_record=held, state_record=state_record)
        yield from self._bring_back(verdict)

    def _bring_back(self, verdict: RecordedVerdict) -> Routine[None]:
        """End the job that this node has just entered, as the one before has ended."""
        membership = self._membership
        ended = yield from membership.change(
            lambda state: transitions.end(state, verdict, by=membership.me)
        )
        if ended is not None:
            _log.warning(
                "the store has lost job %r, which is over; this node has brought back how it ended",
                membership.identity.run_id,
            )

    def is_lost(self) -> Routine[bool]:
        """Whether the store has lost this node's job."""
        membership = self._membership
        (held,) = yield MultiGet([job_key(membership.identity.run_id)])
        return bool(held != membership.job.record)

    def _is_brought_back(self, verdict: RecordedVerdict) -> bool:
        """Whether it is the verdict of this node's own job, which the store had lost.

        A snapshot may hold that of an earlier job, which was older than `verdict_ttl` when this
        one began. Half of that is left for the difference of the nodes' clocks.
        """
        membership = self._membership
        oldest = membership.memory.began - membership.timing.verdict_ttl / 2
        return bool(membership.past) and verdict.time > oldest

    def _check_verdict(self, verdict: RecordedVerdict) -> None:
        run_id = self._membership.identity.run_id
        age = self._membership.wall_clock() - verdict.time
        # A verdict from the future was written with another clock, and may be very recent. Running
        # a finished job again is worse than asking for another run id.
        if max(age, 0.0) < self._membership.timing.verdict_ttl:
            self._membership.news.verdict, self._membership.news.is_past = verdict, True
            if verdict.outcome is JobOutcome.TIMED_OUT:
                raise verdict_error(run_id, verdict)
            ahead = f" (by a clock that is {-age:.0f} s ahead of this node's)" if age <= -1 else ""
            raise RendezvousClosedError(
                f"job {run_id!r} is over: {describe_verdict(verdict)}{ahead}; start a new job "
                "under another run id (--rdzv-id)"
            )
        _log.warning(
            "run id %r was used before by a job that %s; the job starts again",
            run_id,
            describe_outcome(verdict),
        )

    def _is_alive(self, keys: Keys, state: JobState) -> Routine[bool]:
        """Whether the job of an incompatible node is alive, judged by its leader and its states."""
        beat_key, later = keys.beat(state.leader), keys.state(state.version + 1)
        last, before = yield MultiGet([beat_key, later])
        if last is not None and self._membership.absence_is_loss:
            return True
        lease = self._lease_of(beat_key, last)
        interval = self._membership.timing.keep_alive_interval
        checks = self._membership.timing.keep_alive_max_attempt + 1
        if lease is not None:
            # The heartbeat of a dead node stays until its lease has expired.
            checks = max(checks, math.ceil((lease + _LEASE_MARGIN) / interval))
        for _ in range(checks):
            yield Sleep(interval)
            beat, successor = yield MultiGet([beat_key, later])
            # A heartbeat that disappears was not renewed.
            if successor != before or (beat is not None and beat != last):
                return True
            last = beat
        return last is not None and lease is not None

    def _lease_of(self, key: str, beat: bytes | None) -> float | None:
        """The seconds that a heartbeat lasts without renewal; None if it has no lease."""
        if beat is None:
            return None
        try:
            lease = self._membership.codec.decode(key, beat).number("lease", default=None)
        except RecordError as error:
            self._membership.rejections.note("a heartbeat", error)
            return None
        return lease if lease is None else min(max(lease, 0.0), _LONGEST_LEASE)

    def _make_job_record(self) -> bytes:
        identity = self._membership.identity
        first = transitions.first_state(self._membership.me, self._membership.memory)
        record = {
            "incarnation": self._make_name(),
            "min_nodes": identity.min_nodes,
            "max_nodes": identity.max_nodes,
            "max_restarts": identity.settings.max_restarts,
            "shared": dict(identity.job.shared),
            "state": first.to_record(),
            "by": identity.host,
            "command": describe_command(identity.job.command),
        }
        return self._membership.codec.encode(job_key(identity.run_id), record)

    def _decode(self, key: str, held: bytes) -> StoreRecord:
        try:
            return self._membership.codec.decode(key, held)
        except RecordError as error:
            raise RendezvousClosedError(
                f"this node cannot take part in job {self._membership.identity.run_id!r}: {error}"
            ) from error

    def _report_refusal(
        self, keys: Keys, state: JobState, mismatches: Sequence[SettingMismatch]
    ) -> Routine[None]:
        """Record why this node does not join, for the messages of waiting nodes."""
        joined = yield Add(tickets(keys.joined(state.next_round)), 0)
        texts = (f"{here} there, {there} here" for here, there in mismatches)
        refusal = {
            "host": self._membership.identity.host,
            "reason": "; ".join(texts)[:MAX_REFUSAL],
            "round": state.next_round,
            "joined": joined,
        }
        yield Set(keys.refusal, self._membership.codec.encode(keys.refusal, refusal))

    def _describe_refusal(self, record: StoreRecord, mismatches: Sequence[SettingMismatch]) -> str:
        identity = self._membership.identity
        texts = (f"{here} here, {there} there" for here, there in mismatches)
        return (
            f"node {identity.host} is refused by job {identity.run_id!r}, which "
            f"{record.text('by', max_len=300)} has started with other settings: "
            f"{'; '.join(texts)}. Start all nodes with the same ones"
            + (_TWO_JOBS if identity.run_id == DEFAULT_RUN_ID else "")
        )

    def _compare(self, record: StoreRecord) -> list[SettingMismatch]:
        """Return the settings that must be the same on all nodes, and differ."""
        identity = self._membership.identity
        min_nodes = record.integer("min_nodes", low=1)
        max_nodes = record.integer("max_nodes", low=min_nodes)
        max_restarts = record.integer("max_restarts", low=0)
        mismatches: list[SettingMismatch] = []
        if (min_nodes, max_nodes) != (identity.min_nodes, identity.max_nodes):
            here = f"--nnodes={identity.min_nodes}:{identity.max_nodes}"
            mismatches.append(SettingMismatch(here, f"{min_nodes}:{max_nodes}"))
        if max_restarts != identity.settings.max_restarts:
            here = f"--max-restarts={identity.settings.max_restarts}"
            mismatches.append(SettingMismatch(here, str(max_restarts)))
        if identity.run_id == DEFAULT_RUN_ID and (other := _command_in(record)):
            mine = describe_command(identity.job.command)
            if mine and mine.split(" ")[0] != other.split(" ")[0]:
                mismatches.append(SettingMismatch(f"the command {mine!r}", repr(other)))
        others = record.record("shared") if "shared" in record else {}
        own = identity.job.shared
        mismatches += [
            SettingMismatch(f"{name} {_value(own, name)}", _value(others, name))
            for name in sorted(own.keys() | others.keys())
            if own.get(name) != others.get(name)
        ]
        return mismatches

    def _compare_arguments(self, record: StoreRecord) -> None:
        """Warn if this node may belong to another job, as only its arguments differ."""
        identity = self._membership.identity
        mine, other = describe_command(identity.job.command), _command_in(record)
        if identity.run_id == DEFAULT_RUN_ID and mine and other and mine != other:
            _log.warning(
                "this node joins job %r, the default run id, which runs other arguments on %s: %s "
                "there, %s here%s",
                identity.run_id,
                record.text("by", max_len=300),
                other,
                mine,
                _TWO_JOBS,
            )

    def _find_or_start(self) -> Routine[tuple[bytes, StoreRecord, Keys, JobState, bytes]]:
        """Find the job, or start it; with one request, if the store can.

        Returns:
            The job's record as it is stored, and decoded; its keys; the newest known state, and its
            record as it is stored, which is empty for the first state.
        """
        run_id = self._membership.identity.run_id
        key, newest = job_key(run_id), newest_key(run_id)
        start = CompareSet(key, None, self._make_job_record())
        held, (hint,) = yield Batch((start, MultiGet([newest])))
        record = self._decode(key, held)
        keys = Keys(run_id, record.text("incarnation", max_len=64))
        found = self._read_hint(keys, newest, hint) if hint is not None else None
        state, state_record = found or (JobState.from_record(record.record("state"), 0), b"")
        if self._membership.past:
            # A snapshot may have been taken between a state and its copy: this node must not
            # mistake a job that is over for one that runs.
            state, state_record = yield from self._read_on(keys, state, state_record)
        return held, record, keys, state, state_record

    def _read_on(
        self, keys: Keys, state: JobState, record: bytes
    ) -> Routine[tuple[JobState, bytes]]:
        """Return the last state from this one on, and its record."""
        while True:
            key = keys.state(state.version + 1)
            (value,) = yield MultiGet([key])
            if value is None:
                return state, record
            found = self._membership.codec.decode(key, value)
            state, record = JobState.from_record(found, state.version + 1), value

    def _read_hint(self, keys: Keys, newest: str, hint: bytes) -> tuple[JobState, bytes] | None:
        """Return the state in a copy, and its record; None if it is that of another incarnation."""
        incarnation, _, rest = hint.partition(b" ")
        number, _, value = rest.partition(b" ")
        if incarnation != keys.incarnation.encode():
            return None
        try:
            if not _VERSION.fullmatch(number):
                raise RecordError(f"the value under {newest!r} does not begin with a version")  # noqa: TRY301
            version = int(number)
            record = self._membership.codec.decode(keys.state(version), value)
            return JobState.from_record(record, version), value
        except RecordError as error:
            self._membership.rejections.note("a copy of the newest state", error)
            return None


def describe_command(words: Sequence[str]) -> str:
    """Describe what workers run: the last part of the program's path, and its arguments.

    It is stored, so values whose names say that they are secrets are left out.
    """
    shown = [words[0].rsplit("/", 1)[-1].replace(" ", "_")] if words else []
    is_withheld = False
    for word in words[1:]:
        name, is_pair, _ = word.partition("=")
        is_secret = _SECRET.search(name) is not None
        if is_withheld and not word.startswith("-"):
            shown.append(_WITHHELD)
        else:
            shown.append(f"{name}={_WITHHELD}" if is_secret and is_pair else word)
        is_withheld = is_secret and not is_pair and word.startswith("-")
    return printable(" ".join(shown))[:MAX_COMMAND]


def _command_in(record: StoreRecord) -> str:
    """Return the command of the node that started a job; older versions do not write it."""
    return record.text("command", max_len=6 * MAX_COMMAND, default="")


def _value(options: Mapping[str, object], name: str) -> str:
    """Describe the value of an option for a message."""
    return f"is {str(options[name])[:100]!r}" if name in options else "is not given"
