"""Signs of life: a node gives its own, and watches those that it must."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from plaunch.rendezvous import state as states
from plaunch.rendezvous.liveness import Observer
from plaunch.rendezvous.operations import Beat, MultiGet, Routine
from plaunch.rendezvous.records import RecordError
from plaunch.rendezvous.roll import job_key
from plaunch.rendezvous.state import Phase

if TYPE_CHECKING:
    from plaunch.rendezvous.membership import Membership

_log = logging.getLogger("plaunch")


class Pulse:
    """Beats for this node, and looks at others: the leader at all, everybody else at the leader.

    A sign of life says by which lease it stays, if the store has such things; then it is the same
    each time, and it is enough that it is there. It also names the leader that its node knows: a
    new leader must see who is alive since, not who was alive a moment before.
    """

    def __init__(self, ours: Membership) -> None:
        self._ours = ours
        self._beats = 0
        self._seen_connections = 0
        self._observer = self._make_observer()
        self._signs: dict[str, bytes | None] = {}
        self._sign: bytes | None = None  # what this node has given last
        self._lease: float | None = None  # seconds for which it stays; None for ever
        self._is_replaced = False  # whether something else is there

    def begin_anew(self) -> None:
        """Know nobody; called when the job, or the connection to it, is another one."""
        self._seen_connections = self._ours.connections()
        self._observer = self._make_observer()
        self._signs = {}

    def _make_observer(self) -> Observer:
        timing = self._ours.timing
        return Observer(timing.keep_alive_interval, timing.keep_alive_max_attempt, self._ours.clock)

    def beat(self) -> Routine[None]:
        """Give a sign of life, which says so if this node goes."""
        if self._lease is None or self._is_replaced:
            self._beats += 1
            self._is_replaced = False
        key = self._ours.keys.beat(self._ours.me)
        record: dict[str, object] = {"beat": self._beats}
        state = self._ours.state
        if state is not None:
            record["leader"] = state.leader
        if self._lease is not None:
            record["lease"] = self._lease
        if self._ours.leaving:
            record["gone"] = self._ours.leaving
        self._sign = self._ours.codec.encode(key, record)
        self._lease = yield Beat(key, self._sign)

    def look(self) -> Routine[None]:
        """See who is alive: the leader looks at all, everybody else at the leader."""
        if self._ours.connections() != self._seen_connections:
            seen = self._ours.connections()
            held = (yield MultiGet([job_key(self._ours.identity.run_id)]))[0]
            if held != self._ours.job_record:
                self._forget_job()
                return
            self._seen_connections = seen
        with self._ours.lock:
            state = self._ours.state
            if state is None or state.phase in (Phase.OVER, Phase.REPLACED):
                return
            leads = state.leader == self._ours.me
            watched = sorted(self._ours.watched if leads else {state.leader})
        nodes = [self._ours.me, *(node for node in watched if node and node != self._ours.me)]
        values = yield MultiGet([self._ours.keys.beat(node) for node in nodes])
        signs = dict(zip(nodes, values, strict=True))
        self._is_replaced = signs[self._ours.me] != self._sign
        leases = self._read_signs(signs)
        self._ours.moving.update(
            node
            for node, sign in signs.items()
            # A sign that vanishes with its lease is none of life.
            if sign is not None and self._signs.get(node, sign) != sign
        )
        self._signs = signs
        lost = [
            node
            for node in self._observer.observe(signs, own=self._ours.me, leases=leases)
            if node != self._ours.me
        ]
        reasons = {
            node: f"no sign of life for {self._observer.silent_for(node):.1f} s" for node in lost
        }
        if not leads:
            gone = self._ours.gone.get(state.leader)
            if state.leader in reasons or gone is not None:
                reason = reasons.get(state.leader) or gone or ""
                self._ours.lost[state.leader] = reason
                yield from self.take_lead(state.leader, reason)
            return
        with self._ours.lock:
            has_news = self._ours.lost != reasons
            self._ours.lost = reasons
        if has_news:
            self._ours.nudge()

    def _read_signs(self, signs: dict[str, bytes | None]) -> dict[str, float]:
        """Find who goes, and who follows this node; a sign that is not theirs is none.

        Returns:
            The seconds for which signs stay, of those that have a lease.
        """
        leases = {}
        for node, value in signs.items():
            if value is None or node == self._ours.me:
                continue
            key = self._ours.keys.beat(node)
            try:
                record = self._ours.codec.decode(key, value)
                gone = record.text("gone", default="")
                lease = record.number("lease", default=None)
                leader = record.text("leader", default="")
            except RecordError as error:
                _log.warning("a sign of life is not believed: %s", error)
                signs[node] = None
                continue
            if lease is not None:
                leases[node] = lease
            if leader == self._ours.me:
                self._ours.moving.add(node)
            if gone:
                self._ours.gone[node] = gone
        return leases

    def read_leaves(self, signs: dict[str, bytes | None]) -> set[str]:
        """Who of these nodes goes, by its sign of life, or has none."""
        self._read_signs(signs)
        return {node for node, sign in signs.items() if sign is None or node in self._ours.gone}

    def _forget_job(self) -> None:
        """The store does not know the job any more, or knows another one under its name."""
        with self._ours.lock:
            self._seen_connections = self._ours.connections()
            self._ours.lose_job(
                "the store has forgotten the job, as after a restart without its data"
            )

    def take_lead(self, gone: str, reason: str) -> Routine[None]:
        """Lead instead of the leader `gone`, unless somebody else is faster."""
        yield from self._ours.change(lambda state: states.lead(state, self._ours.me, gone, reason))
