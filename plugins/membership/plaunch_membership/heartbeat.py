"""Heartbeats: a node gives its own, and watches those that it must."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch_membership import transitions
from plaunch_membership.keys import job_key
from plaunch_membership.liveness import Observer
from plaunch_membership.operations import Beat, Delete, MultiGet, Routine
from plaunch_membership.records import RecordError

if TYPE_CHECKING:
    from plaunch_membership.membership import Membership
    from plaunch_membership.shared import KnownJob
    from plaunch_membership.state import JobState


class Heartbeat:
    """Sends heartbeats for this node and checks others: the leader all, the others the leader.

    With the same look it sees whether the store still holds the job. A store can lose it, all or
    the last of it, and be there again without any connection of this node having been missed.

    A heartbeat says by which lease it stays, if the store has such things; then it is the same
    each time, and it is enough that it is there. It also names the leader that its node knows: a
    new leader must see who is alive since, not who was alive a moment before.
    """

    def __init__(self, ours: Membership) -> None:
        self._ours = ours
        self._beats = 0
        self._observer = self._make_observer()
        self._last_look: dict[str, bytes | None] = {}
        self._own: bytes | None = None  # what this node has given last
        self._key = ""
        self._seen: tuple[str, bytes] | None = None  # the state, as held at the last look
        self._lease: float | None = None  # seconds for which it stays; None for ever
        self._is_replaced = False  # whether something else is there

    def begin_anew(self) -> None:
        """Forget all nodes; called when the job is another one."""
        self._observer = self._make_observer()
        self._last_look = {}
        self._seen = None

    def end(self) -> Routine[None]:
        """Delete the heartbeat in a job that this node is no longer part of.

        Where heartbeats have leases, it would last as long as this node, and mislead the others.
        """
        if self._key:
            yield Delete(self._key)

    def _make_observer(self) -> Observer:
        timing = self._ours.timing
        return Observer(timing.keep_alive_interval, timing.keep_alive_max_attempt, self._ours.clock)

    def beat(self) -> Routine[None]:
        """Send a heartbeat; it says if this node is leaving."""
        if self._lease is None or self._is_replaced:
            self._beats += 1
            self._is_replaced = False
        self._key = key = self._ours.keys.beat(self._ours.me)
        record: dict[str, object] = {"beat": self._beats}
        state = self._ours.state
        if state is not None:
            record["leader"] = state.leader
        if self._lease is not None:
            record["lease"] = self._lease
        if self._ours.part.leaving:
            record["gone"] = self._ours.part.leaving
        self._own = self._ours.codec.encode(key, record)
        self._lease = yield Beat(key, self._own)

    def look(self) -> Routine[None]:
        """Check which nodes are alive: the leader checks all, the others check the leader."""
        job, peers, state = self._ours.job, self._ours.peers, self._ours.job.state
        if state is None or state.has_ended:
            return
        leads = state.leader == self._ours.me
        watched = sorted(peers.watched if leads else {state.leader})
        must_hold = self._must_hold(job, state)
        nodes = [self._ours.me, *(node for node in watched if node and node != self._ours.me)]
        keys = [self._ours.keys.beat(node) for node in nodes]
        values = yield MultiGet([*must_hold, *keys])
        loss = self._find_loss(dict(zip(must_hold, values, strict=False)), must_hold)
        if loss:
            self._ours.lose_job(loss)
            return
        self._seen = job.keys.state(state.version), job.state_record
        beats = dict(zip(nodes, values[len(must_hold) :], strict=True))
        self._is_replaced = beats[self._ours.me] != self._own
        leases = self._read_beats(beats)
        peers.moving.update(
            node
            for node, beat in beats.items()
            # One that vanishes with its lease shows no life.
            if beat is not None and self._last_look.get(node, beat) != beat
        )
        self._last_look = beats
        lost = [
            node
            for node in self._observer.observe(beats, own=self._ours.me, leases=leases)
            if node != self._ours.me
        ]
        reasons = {
            node: f"no heartbeat for {self._observer.silent_for(node):.1f} s" for node in lost
        }
        if not leads:
            gone = peers.gone.get(state.leader)
            if state.leader in reasons or gone is not None:
                reason = reasons.get(state.leader) or gone or ""
                peers.lost[state.leader] = reason
                yield from self.take_lead(state.leader, reason)
            return
        with self._ours.lock:
            has_news = peers.lost != reasons
            peers.lost = reasons
        if has_news:
            self._ours.nudge()

    def _read_beats(self, beats: dict[str, bytes | None]) -> dict[str, float]:
        """Find who is leaving, and who follows this node.

        What is no valid record of its node is no heartbeat.

        Returns:
            The seconds for which heartbeats stay, of those that have a lease.
        """
        leases = {}
        for node, value in beats.items():
            if value is None or node == self._ours.me:
                continue
            key = self._ours.keys.beat(node)
            try:
                record = self._ours.codec.decode(key, value)
                gone = record.text("gone", default="")
                lease = record.number("lease", default=None)
                leader = record.text("leader", default="")
            except RecordError as error:
                self._ours.doubts.note("a heartbeat", error)
                beats[node] = None
                continue
            if lease is not None:
                leases[node] = lease
            if leader == self._ours.me:
                self._ours.peers.moving.add(node)
            if gone:
                self._ours.peers.gone[node] = gone
        return leases

    def read_leaves(self, beats: dict[str, bytes | None]) -> set[str]:
        """The nodes that are leaving according to their heartbeats, or have none."""
        self._read_beats(beats)
        gone = self._ours.peers.gone
        return {node for node, beat in beats.items() if beat is None or node in gone}

    def _must_hold(self, job: KnownJob, state: JobState) -> dict[str, bytes]:
        """The keys of a store that has lost nothing: the job, its state, and that of the last look.

        The last one as well, because somebody may have written the next state over a gap.
        """
        found = {job_key(self._ours.identity.run_id): job.record}
        if self._seen is not None:
            key, record = self._seen
            found[key] = record
        found[job.keys.state(state.version)] = job.state_record
        return found

    def _find_loss(self, held: dict[str, bytes | None], must_hold: dict[str, bytes]) -> str:
        """Describe what the store has lost; empty if nothing."""
        if held == must_hold:
            return ""
        job = job_key(self._ours.identity.run_id)
        if held[job] is None:
            return "the store has lost the job, as after a restart without its data"
        if held[job] != must_hold[job]:
            return (
                "another job has begun under its run id: the store had lost this one, or its "
                "nodes seemed to have ended"
            )
        return "the store has returned to an older state of the job, as from a snapshot"

    def take_lead(self, gone: str, reason: str) -> Routine[None]:
        """Lead instead of the leader `gone`, unless another node is faster."""
        yield from self._ours.change(
            lambda state: transitions.lead(state, self._ours.me, gone, reason)
        )
