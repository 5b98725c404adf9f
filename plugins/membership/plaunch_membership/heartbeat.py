"""Heartbeats: a node sends its own, and watches those of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch_membership import transitions
from plaunch_membership.keys import job_key
from plaunch_membership.liveness import LivenessObserver
from plaunch_membership.operations import Delete, MultiGet, Routine, WriteHeartbeat
from plaunch_membership.records import RecordError

if TYPE_CHECKING:
    from plaunch_membership.membership import Membership
    from plaunch_membership.shared import KnownJob
    from plaunch_membership.state import JobState


class HeartbeatMonitor:
    """Sends this node's heartbeats and checks others: the leader all, the others the leader.

    The same read checks whether the store still holds the job. A store may lose all or the last
    part of it and be available again before any connection of this node has failed.

    A heartbeat contains the duration of its lease, if the store has leases. It is then the same
    each time, and only has to exist. It also names the leader that its node knows: a new leader
    must see which nodes are alive now, not which were alive earlier.
    """

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._beats = 0
        self._observer = self._make_observer()
        self._last_beats: dict[str, bytes | None] = {}
        self._own: bytes | None = None  # the last heartbeat of this node
        self._key = ""
        self._seen: tuple[str, bytes] | None = None  # the state's key and record at the last check
        self._lease: float | None = None  # seconds until it expires; None without a lease
        self._is_replaced = False  # whether the store holds another value

    def reset(self) -> None:
        """Forget all nodes. Called when the node enters another job."""
        self._observer = self._make_observer()
        self._last_beats = {}
        self._seen = None

    def end(self) -> Routine[None]:
        """Delete the heartbeat in a job that this node is no longer part of.

        With a lease, it would last as long as this process, and mislead the others.
        """
        if self._key:
            yield Delete(self._key)

    def _make_observer(self) -> LivenessObserver:
        timing = self._membership.timing
        return LivenessObserver(
            timing.keep_alive_interval,
            timing.keep_alive_max_attempt,
            self._membership.clock,
            absence_is_loss=self._membership.absence_is_loss,
        )

    def beat(self) -> Routine[None]:
        """Send a heartbeat; while this node is leaving, it contains the reason."""
        self.note_sent((yield self.next()))

    def next(self) -> WriteHeartbeat:
        """Return the operation that sends the next heartbeat; `note_sent` takes its result."""
        if self._lease is None or self._is_replaced:
            self._beats += 1
            self._is_replaced = False
        self._key = key = self._membership.keys.beat(self._membership.me)
        record: dict[str, object] = {"beat": self._beats}
        state = self._membership.state
        if state is not None:
            record["leader"] = state.leader
        if self._lease is not None:
            record["lease"] = self._lease
        if self._membership.part.leaving:
            record["gone"] = self._membership.part.leaving
        self._own = self._membership.codec.encode(key, record)
        return WriteHeartbeat(key, self._own)

    def note_sent(self, lease: float | None) -> None:
        """Note that a heartbeat was sent.

        Args:
            lease: the seconds until it expires; None if it has no lease.
        """
        self._lease = lease

    def check(self) -> Routine[None]:
        """Check which nodes are alive: the leader checks all, the others check the leader."""
        job, peers, state = self._membership.job, self._membership.peers, self._membership.job.state
        if state is None or state.has_ended:
            return
        leads = state.leader == self._membership.me
        watched = sorted(peers.watched if leads else {state.leader})
        must_hold = self._must_hold(job, state)
        nodes = [
            self._membership.me,
            *(node for node in watched if node and node != self._membership.me),
        ]
        keys = [self._membership.keys.beat(node) for node in nodes]
        values = yield MultiGet([*must_hold, *keys])
        loss = self._find_loss(dict(zip(must_hold, values, strict=False)), must_hold)
        if loss:
            self._membership.lose_job(loss)
            return
        if state.version:
            self._seen = job.keys.state(state.version), job.state_record
        beats = dict(zip(nodes, values[len(must_hold) :], strict=True))
        self._is_replaced = beats[self._membership.me] != self._own
        leases = self._read_beats(beats)
        peers.moving.update(
            node
            for node, beat in beats.items()
            # A heartbeat that disappears was not renewed.
            if beat is not None and self._last_beats.get(node, beat) != beat
        )
        self._last_beats = beats
        lost = [
            node
            for node in self._observer.observe(beats, own=self._membership.me, leases=leases)
            if node != self._membership.me
        ]
        reasons = {node: self._observer.describe_loss(node) for node in lost}
        if not leads:
            leader = state.leader
            if leader in reasons:
                with self._membership.lock:
                    peers.note_losses({**peers.lost, leader: reasons[leader]})
            is_missing = leader in reasons or leader in peers.gone
            if is_missing and not self._membership.part.leaving:
                reason = reasons.get(leader) or peers.gone.get(leader, "")
                yield from self.take_lead(leader, reason)
            return
        with self._membership.lock:
            has_news = peers.note_losses(reasons)
        if has_news:
            self._membership.nudge()

    def _read_beats(self, beats: dict[str, bytes | None]) -> dict[str, float]:
        """Find the nodes that are leaving, and those that follow this node.

        Invalid records are ignored.

        Returns:
            The duration of the lease of each heartbeat that has one, in seconds.
        """
        leases = {}
        for node, value in beats.items():
            if value is None or node == self._membership.me:
                continue
            key = self._membership.keys.beat(node)
            try:
                record = self._membership.codec.decode(key, value)
                gone = record.text("gone", default="")
                lease = record.number("lease", default=None)
                leader = record.text("leader", default="")
            except RecordError as error:
                self._membership.rejections.note("a heartbeat", error)
                beats[node] = None
                continue
            if lease is not None:
                leases[node] = lease
            if leader == self._membership.me:
                self._membership.peers.moving.add(node)
            if gone:
                self._membership.peers.note_departure(node, gone, self._membership.clock())
        return leases

    def read_leaving(self, beats: dict[str, bytes | None]) -> set[str]:
        """Return the nodes that are leaving according to their heartbeats, or have none."""
        self._read_beats(beats)
        gone = self._membership.peers.gone
        return {node for node, beat in beats.items() if beat is None or node in gone}

    def _must_hold(self, job: KnownJob, state: JobState) -> dict[str, bytes]:
        """Return the records that the store must still hold: the job, and the last known states.

        The state at the last check is included because another node may have written the next state
        over a gap.
        """
        found = {job_key(self._membership.identity.run_id): job.record}
        if self._seen is not None:
            key, record = self._seen
            found[key] = record
        if state.version:  # the first one is part of the job's record
            found[job.keys.state(state.version)] = job.state_record
        return found

    def _find_loss(self, held: dict[str, bytes | None], must_hold: dict[str, bytes]) -> str:
        """Describe what the store has lost; empty if nothing."""
        if held == must_hold:
            return ""
        job = job_key(self._membership.identity.run_id)
        if held[job] is None:
            return "the store has lost the job, as after a restart without its data"
        if held[job] != must_hold[job]:
            return (
                "another job has begun under its run id: the store had lost this one, or its "
                "nodes seemed to have ended"
            )
        return "the store has returned to an older state of the job, as from a snapshot"

    def take_lead(self, gone: str, reason: str) -> Routine[None]:
        """Take over from the leader `gone`, unless another node is faster."""
        yield from self._membership.change(
            lambda state: transitions.lead(state, self._membership.me, gone, reason)
        )
