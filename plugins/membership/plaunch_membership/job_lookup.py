"""Finds the job of a node's run id, or starts it."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, NamedTuple

from plaunch.errors import RendezvousClosedError

from plaunch_membership import transitions
from plaunch_membership.bounds import MAX_REFUSAL
from plaunch_membership.keys import Keys, job_key, tickets
from plaunch_membership.operations import Add, CompareSet, MultiGet, Routine, Set, Sleep, Wait
from plaunch_membership.records import RecordError
from plaunch_membership.state import JobPhase, JobState, describe_outcome, describe_verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from plaunch_membership.membership import Membership
    from plaunch_membership.records import Record
    from plaunch_membership.state import RecordedVerdict

_log = logging.getLogger("plaunch")

_PATIENCE = 0.5  # seconds to wait for a record that should be there
_LEASE_MARGIN = 1.0  # seconds that a store may need to notice that a lease is over
_LONGEST_LEASE = 600.0  # seconds; no node waits longer than that to be refused


class Difference(NamedTuple):
    """A setting that must be the same on all nodes, and is not.

    Args:
        ours: its name and its value on this node: `"--max-restarts=3"`.
        theirs: its value on the node that started the job: `"1"`.
    """

    ours: str
    theirs: str


class JobLookup:
    """Finds the present incarnation of a job, and compares its settings with this node's.

    Args:
        ours: this node's part in the job.
        make_name: makes up the unique name of an incarnation.
    """

    def __init__(self, ours: Membership, make_name: Callable[[], str]) -> None:
        self._ours = ours
        self._make_name = make_name

    def open(self) -> Routine[None]:
        """Find the job, or begin it.

        Raises:
            RendezvousClosedError: the job is over, or refuses this node.
            RendezvousStateError: the store holds something else.
        """
        identity = self._ours.identity
        key = job_key(identity.run_id)
        while True:
            held = yield CompareSet(key, None, self._make_job_record())
            record = self._decode(key, held)
            keys = Keys(identity.run_id, record.text("incarnation", max_len=64))
            state, state_record = yield from self._find_state(keys)
            if state.version == 0 and state.leader == self._ours.me:
                # No state was there. If the store has lost its data since the job's key was read,
                # this would be a second beginning of an incarnation that others are still in.
                (now,) = yield MultiGet([key])
                if now != held:
                    continue
            if state.phase is JobPhase.OVER and state.verdict is not None:
                if keys.incarnation != self._ours.follows:
                    self._ask_how_it_ended(state.verdict)
            elif state.phase is not JobPhase.REPLACED and keys.incarnation not in self._ours.past:
                differences = self._compare(record)
                if not differences:
                    break
                if (yield from self._is_alive(keys, state)):
                    yield from self._report_refusal(keys, state, differences)
                    raise RendezvousClosedError(self._describe_refusal(record, differences))
                _log.warning(
                    "run id %r was used before by a job that has no live nodes left; the job "
                    "starts again",
                    identity.run_id,
                )
            yield CompareSet(key, held, self._make_job_record())
        self._ours.begin_anew(keys, state, job_record=held, state_record=state_record)

    def _ask_how_it_ended(self, verdict: RecordedVerdict) -> None:
        run_id = self._ours.identity.run_id
        age = self._ours.wall_clock() - verdict.time
        # A verdict from the future comes from another clock, and may be as young as any. To run a
        # finished job again is worse than to ask for another run id.
        if max(age, 0.0) < self._ours.timing.verdict_ttl:
            self._ours.news.verdict, self._ours.news.is_past = verdict, True
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
        """Whether anything moves in a job in which this node cannot take part."""
        beat_key, later = keys.beat(state.leader), keys.state(state.version + 1)
        last, before = yield MultiGet([beat_key, later])
        lease = self._lease_of(beat_key, last)
        interval = self._ours.timing.keep_alive_interval
        looks = self._ours.timing.keep_alive_max_attempt + 1
        if lease is not None:
            # A dead node's heartbeat stays for as long, and somewhat longer.
            looks = max(looks, math.ceil((lease + _LEASE_MARGIN) / interval))
        for _ in range(looks):
            yield Sleep(interval)
            beat, successor = yield MultiGet([beat_key, later])
            # One that vanishes with its lease shows no life.
            if successor != before or (beat is not None and beat != last):
                return True
            last = beat
        return last is not None and lease is not None

    def _lease_of(self, key: str, beat: bytes | None) -> float | None:
        """The seconds that a heartbeat lasts without renewal; None if forever."""
        if beat is None:
            return None
        try:
            lease = self._ours.codec.decode(key, beat).number("lease", default=None)
        except RecordError as error:
            _log.warning("a heartbeat is rejected: %s", error)
            return None
        return lease if lease is None else min(max(lease, 0.0), _LONGEST_LEASE)

    def _make_job_record(self) -> bytes:
        identity = self._ours.identity
        record = {
            "incarnation": self._make_name(),
            "min_nodes": identity.min_nodes,
            "max_nodes": identity.max_nodes,
            "max_restarts": identity.job.max_restarts,
            "shared": dict(identity.job.shared),
            "by": identity.host,
        }
        return self._ours.codec.encode(job_key(identity.run_id), record)

    def _decode(self, key: str, held: bytes) -> Record:
        try:
            return self._ours.codec.decode(key, held)
        except RecordError as error:
            raise RendezvousClosedError(
                f"this node cannot take part in job {self._ours.identity.run_id!r}: {error}"
            ) from error

    def _report_refusal(
        self, keys: Keys, state: JobState, differences: Sequence[Difference]
    ) -> Routine[None]:
        """Let nodes that wait for this one show why it does not come."""
        joined = yield Add(tickets(keys.joined(state.next_round)), 0)
        texts = (f"{ours} there, {theirs} here" for ours, theirs in differences)
        refusal = {
            "host": self._ours.identity.host,
            "reason": "; ".join(texts)[:MAX_REFUSAL],
            "round": state.next_round,
            "joined": joined,
        }
        yield Set(keys.refusal, self._ours.codec.encode(keys.refusal, refusal))

    def _describe_refusal(self, record: Record, differences: Sequence[Difference]) -> str:
        identity = self._ours.identity
        texts = (f"{ours} here, {theirs} there" for ours, theirs in differences)
        return (
            f"node {identity.host} is refused by job {identity.run_id!r}, which "
            f"{record.text('by', max_len=300)} has started with other settings: "
            f"{'; '.join(texts)}. Start all nodes with the same ones"
        )

    def _compare(self, record: Record) -> list[Difference]:
        """The settings that must be the same on all nodes, and are not."""
        identity = self._ours.identity
        theirs_min = record.integer("min_nodes", low=1)
        theirs_max = record.integer("max_nodes", low=theirs_min)
        theirs_restarts = record.integer("max_restarts", low=0)
        differences: list[Difference] = []
        if (theirs_min, theirs_max) != (identity.min_nodes, identity.max_nodes):
            ours_nodes = f"--nnodes={identity.min_nodes}:{identity.max_nodes}"
            differences.append(Difference(ours_nodes, f"{theirs_min}:{theirs_max}"))
        if theirs_restarts != identity.job.max_restarts:
            ours_restarts = f"--max-restarts={identity.job.max_restarts}"
            differences.append(Difference(ours_restarts, str(theirs_restarts)))
        theirs = record.record("shared") if "shared" in record else {}
        ours = identity.job.shared
        differences += [
            Difference(f"{name} {_value(ours, name)}", _value(theirs, name))
            for name in sorted(ours.keys() | theirs.keys())
            if ours.get(name) != theirs.get(name)
        ]
        return differences

    def _find_state(self, keys: Keys) -> Routine[tuple[JobState, bytes]]:
        """The newest state that can be found at once, and its record."""
        versions = yield Add(keys.versions, 0)
        if versions > 0:
            key = keys.state(versions - 1)
            value = yield Wait(key, _PATIENCE)
            if value is not None:
                return JobState.from_record(
                    self._ours.codec.decode(key, value), versions - 1
                ), value
        first = transitions.first_state(self._ours.me, self._ours.attempt)
        key = keys.state(0)
        mine = self._ours.codec.encode(key, first.to_record())
        held = yield CompareSet(key, None, mine)
        if held == mine:
            yield Add(keys.versions)
        return JobState.from_record(self._ours.codec.decode(key, held), 0), held


def _value(options: Mapping[str, object], name: str) -> str:
    """The value of an option, in the words of a message."""
    return f"is {str(options[name])[:100]!r}" if name in options else "is not given"
