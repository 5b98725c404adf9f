"""What every rendezvous handler must do that knows the whole job."""

from __future__ import annotations

import secrets
import signal
from typing import TYPE_CHECKING, ClassVar

import pytest

from plaunch.errors import (
    RendezvousClosedError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
)
from plaunch.rendezvous.api import (
    ChangeKind,
    JobFailure,
    JobSettings,
    RendezvousHandler,
    RendezvousParameters,
    WorldRanks,
)
from plaunch.testing.conformance.nodes import Node, close_all, eventually, meet, met

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path


FAILURE = JobFailure(
    rank=1, began=1000.0, summary="rank 1 exited with code 3", detail={"exit_code": 3}
)

_GARBAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty object": lambda value: b"{}",
    "truncated": lambda value: value[: len(value) // 2],
    "of another version": lambda value: value.replace(b'"v":1', b'"v":7', 1),
    "with other fields": lambda value: b'{"v":1,"node":{"a":[]},"beat":"x","incarnation":3}',
    "deeply nested": lambda value: b'{"v":1,"a":' + b"[" * 5000 + b"]" * 5000 + b"}",
    "binary": lambda value: b"\x80\x05\x95\xff",
    "a pickle": lambda value: b"cos\nsystem\n(S'exit 1'\ntR.",
}


class RendezvousConformance:
    """Derive from it, say how to `create` a handler, and let pytest collect the class.

    All handlers of a test must share one store, which must be there until its end, whichever
    handler goes first. It need not be empty: every test has a run id of its own.

    Tests that let a node die, or garble what it writes, do so between the handler and its store.
    They are skipped for a handler that is no `DynamicRendezvousHandler`.
    """

    backend: ClassVar[str] = "conformance"
    endpoint: ClassVar[str] = ""
    config: ClassVar[Mapping[str, object]] = {}  # more options (`--rdzv-conf`) for every handler

    # What tests of loss wait for; a slow store needs more.
    keep_alive_interval: ClassVar[float] = 0.2
    keep_alive_max_attempt: ClassVar[int] = 8

    crowd: ClassVar[int] = 100  # nodes that arrive at once
    steps: ClassVar[int] = 24  # operations before each of which a leader dies

    def create(self, params: RendezvousParameters) -> RendezvousHandler:
        """Make the handler of one node; to be overridden."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _job(self) -> Iterator[None]:
        self._run_id = f"conformance-{secrets.token_hex(6)}"
        self._nodes: list[Node] = []
        yield
        close_all(self._nodes)

    def node(
        self,
        min_nodes: int,
        max_nodes: int,
        *,
        is_quick: bool = False,
        run_id: str = "",
        role: str = "default",
        nproc: int = 1,
        max_restarts: int = 3,
        index: int | None = None,
        **config: object,
    ) -> Node:
        """Make one node; `is_quick` if it must notice losses soon."""
        keep_alive: dict[str, object] = {"keep_alive_interval": 1.0, "keep_alive_max_attempt": 15}
        if is_quick:
            keep_alive = {
                "keep_alive_interval": self.keep_alive_interval,
                "keep_alive_max_attempt": self.keep_alive_max_attempt,
            }
        params = RendezvousParameters(
            self.backend,
            self.endpoint,
            run_id or self._run_id,
            min_nodes,
            max_nodes,
            "127.0.0.1",
            job=JobSettings(role, nproc, max_restarts, index),
            **{"last_call_timeout": 0.5, **keep_alive, **self.config, **config},
        )
        node = Node(self.create(params))
        self._nodes.append(node)
        return node

    def nodes(self, count: int, min_nodes: int, max_nodes: int, **options: object) -> list[Node]:
        """Make several nodes that are alike."""
        return [self.node(min_nodes, max_nodes, **options) for _ in range(count)]  # type: ignore[arg-type]

    # --- join -------------------------------------------------------------------------------------

    @pytest.mark.parametrize("count", [1, 2, 5])
    def test_nodes_meet(self, count: int) -> None:
        """All get into one round under different ranks, with one place for the workers' store."""
        for one in meet(*self.nodes(count, count, count)):
            assert one.attempt == 0
            assert one.reason == ""
            assert one.bootstrap_store_info.master_addr
            assert 0 < one.bootstrap_store_info.master_port < 65536

    def test_a_round_is_complete_after_the_last_call(self) -> None:
        """With fewer than the most nodes, once nobody else comes."""
        meet(*self.nodes(2, 2, 4))

    def test_a_round_waits_for_the_fewest_nodes(self) -> None:
        """A node alone stays alone, however short the last call."""
        one, other = self.nodes(2, 2, 2, last_call_timeout=0)
        one.join()
        eventually(lambda: one.is_waiting, "the first one waits")
        other.join()
        met(one, other)

    def test_ranks_of_workers(self) -> None:
        """Nodes may have different numbers of workers, and roles."""
        nodes = [
            self.node(3, 3, index=0, nproc=2, role="a"),
            self.node(3, 3, index=1, nproc=1, role="b"),
            self.node(3, 3, index=2, nproc=3, role="a"),
        ]
        assert [one.ranks for one in meet(*nodes)] == [
            WorldRanks(0, 6, 0, 5),
            WorldRanks(2, 6, 0, 1),
            WorldRanks(3, 6, 2, 5),
        ]

    def test_other_run_ids_are_other_jobs(self) -> None:
        """On the same store."""
        ours = [self.node(1, 1), self.node(1, 1, run_id=f"{self._run_id}/other")]
        for node in ours:
            meet(node)

    def test_a_crowd_meets(self) -> None:
        """Many nodes at once, none of which does more than if they were few."""
        few = self.nodes(5, 5, 5, run_id=f"{self._run_id}-few")
        crowd = self.nodes(self.crowd, self.crowd, self.crowd)
        meet(*few)
        meet(*crowd)
        # Heartbeats apart; and one of them leads, which is more work the more there are.
        cost, *_ = sorted(node.wire.operations["add"] for node in few)
        costs = sorted(node.wire.operations["add"] for node in crowd)
        assert costs[len(costs) * 9 // 10] <= cost + 2

    # --- late join --------------------------------------------------------------------------------

    def test_a_late_node_is_admitted(self) -> None:
        """The others are told; those of the round before keep their ranks."""
        early = self.nodes(2, 2, 3)
        before = [one.rank for one in meet(*early)]
        late = self.node(2, 3).join()
        for node in early:
            node.wait_for(ChangeKind.ARRIVED)
        for node in early:
            node.join()
        rounds = met(*early, late)
        assert [one.rank for one in rounds] == [*before, 2]
        assert {one.attempt for one in rounds} == {0}
        assert all(one.reason for one in rounds)

    def test_a_node_that_comes_after_the_end_is_told_how_it_was(self) -> None:
        """And cannot take part."""
        (node,) = self.nodes(1, 1, 1)
        meet(node)
        node.job.report_success()
        node.wait_for(ChangeKind.CLOSED)
        late = self.node(1, 1).join()
        with pytest.raises(RendezvousClosedError):
            late.round()
        assert late.verdict is not None
        assert late.verdict.outcome == "succeeded"

    # --- leave and loss ---------------------------------------------------------------------------

    @pytest.mark.parametrize("who", ["the leader", "another"])
    def test_a_node_leaves(self, who: str) -> None:
        """The others are told, and go on at once without it."""
        nodes = self._in_order(3, 2, 3)
        leaver = nodes.pop(0 if who == "the leader" else 1)
        assert leaver.handler.leave()
        for node in nodes:
            assert node.wait_for(ChangeKind.LEFT).reason
        assert {one.attempt for one in meet(*nodes)} == {0}

    @pytest.mark.parametrize("who", ["the leader", "another"])
    def test_a_node_is_lost(self, who: str) -> None:
        """The others are told, and go on at once without it; it costs no restart."""
        nodes = self._in_order(3, 2, 3, is_quick=True)
        victim = nodes.pop(0 if who == "the leader" else 1)
        victim.kill()
        for node in nodes:
            assert node.wait_for(ChangeKind.LOST).reason
        assert {one.attempt for one in meet(*nodes)} == {0}

    def test_a_lost_node_comes_back(self) -> None:
        """As another process of the same host would."""
        nodes = self._in_order(2, 1, 2, is_quick=True)
        nodes[1].kill()
        nodes[0].wait_for(ChangeKind.LOST)
        meet(nodes[0])
        back = self.node(1, 2, is_quick=True).join()
        nodes[0].wait_for(ChangeKind.ARRIVED)
        nodes[0].join()
        met(nodes[0], back)

    def test_a_node_that_dies_while_it_waits_is_not_in_the_round(self) -> None:
        """Nobody waits for it for ever."""
        one, victim, other = self.nodes(3, 3, 3, is_quick=True)
        one.join()
        eventually(lambda: one.wire.operations["beat"] > 1, "the first one waits")
        victim.join()
        eventually(lambda: victim.wire.operations["beat"] > 1, "the second one waits")
        victim.kill()
        eventually(lambda: not victim.is_waiting, "the victim is dead")
        # It has time to be noticed before the round would be complete with it.
        seen = one.wire.operations["beat"] + self.keep_alive_max_attempt + 3
        eventually(lambda: one.wire.operations["beat"] > seen, "time passes")
        replacement = self.node(3, 3, is_quick=True).join()
        other.join()
        met(one, replacement, other)

    def test_a_leader_dies_at_any_step(self) -> None:
        """The two others find each other all the same, without it, and without a restart.

        For each step there is a job of its own, and all run at once.
        """
        jobs = []
        for step in range(1, self.steps + 1):
            run_id = f"{self._run_id}-{step}"
            leader, *others = self.nodes(3, 2, 3, run_id=run_id, is_quick=True)
            leader.wire.dies_at = step
            jobs.append((leader, others))
        for leader, _ in jobs:
            leader.join()
        for leader, others in jobs:
            # The leader is who comes first.
            eventually(lambda: leader.has_come, "it has come, or is dead")  # noqa: B023 - done here
            for node in others:
                node.obey()
        for leader, others in jobs:
            # It may live until there is a round; its next sign of life lets it die.
            eventually(lambda: leader.wire.is_cut, "the leader dies")  # noqa: B023
            eventually(
                lambda: self._are_alone(others),  # noqa: B023
                f"the others meet after its death before operation {leader.wire.dies_at}: "
                f"{leader.wire.operations}",
            )

    @staticmethod
    def _are_alone(nodes: list[Node]) -> bool:
        rounds = [node.present for node in nodes]
        places = {(one.world_size, one.attempt, one.bootstrap_store_info) for one in rounds if one}
        return None not in rounds and len(places) == 1 and places.pop()[:2] == (len(nodes), 0)

    # --- ranks ------------------------------------------------------------------------------------

    def test_a_given_index_is_the_rank(self) -> None:
        """In whatever order the nodes arrive."""
        nodes = [self.node(3, 3, index=index) for index in (2, 0, 1)]
        assert [one.rank for one in meet(*nodes)] == [2, 0, 1]

    def test_an_index_that_was_given_twice_is_refused(self) -> None:
        """One of the two takes part, the other one is told why not."""
        nodes = [self.node(1, 3, index=index) for index in (0, 1, 1)]
        for node in nodes:
            node.join()
        refused = []
        for node in nodes:
            try:
                node.round()
            except RendezvousClosedError as error:
                refused.append((node, str(error)))
        assert [node in nodes[1:] for node, _ in refused] == [True]
        assert "1" in refused[0][1]

    def test_ranks_are_stable(self) -> None:
        """From round to round, whoever leaves and comes; the newcomer gets the hole."""
        nodes = self._in_order(3, 2, 3)
        nodes.pop(1).handler.leave()
        for node in nodes:
            node.wait_for(ChangeKind.LEFT)
        meet(*nodes)
        newcomer = self.node(2, 3).join()
        for node in nodes:
            node.wait_for(ChangeKind.ARRIVED)
        for node in nodes:
            node.join()
        rounds = met(*nodes, newcomer)
        assert rounds[0].rank == 0
        for _ in range(2):
            ranks = [one.rank for one in rounds]
            nodes[0].report(FAILURE)
            for node in (nodes[1], newcomer):
                node.wait_for(ChangeKind.FAILED)
            rounds = meet(*nodes, newcomer)
            assert [one.rank for one in rounds] == ranks

    # --- spares -----------------------------------------------------------------------------------

    def test_a_spare_takes_a_place_that_is_free(self) -> None:
        """Until then it waits, without an error, for longer than others may."""
        nodes = self._in_order(2, 2, 2, is_quick=True)
        spare = self.node(2, 2, is_quick=True, join_timeout=1.0).join()
        eventually(lambda: spare.wire.operations["beat"] > 2, "the spare is there")
        assert spare.is_waiting
        nodes[1].kill()
        nodes[0].wait_for(ChangeKind.LOST)
        nodes[0].join()
        met(nodes[0], spare)

    def test_a_spare_goes_when_the_job_has_succeeded(self) -> None:
        """Without an error."""
        nodes = self._in_order(2, 2, 2)
        spare = self.node(2, 2).join()
        eventually(lambda: spare.has_come, "the spare is there")
        for node in nodes:
            node.job.report_success()
        with pytest.raises(RendezvousGracefulExitError):
            spare.round()

    # --- one job ----------------------------------------------------------------------------------

    def test_a_failure_is_everybodys(self) -> None:
        """All form a new round, with one attempt more, and know why."""
        nodes = self._in_order(3, 3, 3)
        for attempt in (1, 2):
            nodes[1].report(FAILURE)
            for node in (nodes[0], nodes[2]):
                node.wait_for(ChangeKind.FAILED)
            rounds = meet(*nodes)
            assert {one.attempt for one in rounds} == {attempt}
            assert all(FAILURE.summary in one.reason for one in rounds)

    def test_failures_on_several_nodes_count_once(self) -> None:
        """And the first of them is the cause."""
        nodes = self._in_order(2, 2, 2)
        later = JobFailure(rank=0, began=1001.0, summary="rank 0 was aborted", detail={})
        nodes[0].report(later)
        nodes[1].report(FAILURE)
        rounds = meet(*nodes)
        assert {one.attempt for one in rounds} == {1}
        assert all(FAILURE.summary in one.reason for one in rounds)

    @pytest.mark.parametrize(("max_restarts", "is_final"), [(0, False), (5, True)])
    def test_the_last_failure_ends_the_job(self, max_restarts: int, is_final: bool) -> None:
        """With the same cause, in detail, on all nodes."""
        nodes = self._in_order(3, 3, 3, max_restarts=max_restarts)
        nodes[2].report(FAILURE, is_final=is_final)
        for node in nodes[:2]:
            node.wait_for(ChangeKind.FAILED)
        for node in nodes:
            node.join()
        for node in nodes:
            with pytest.raises(RendezvousClosedError, match=FAILURE.summary):
                node.round()
            assert node.verdict is not None
            assert node.verdict.outcome == "failed"
            assert node.verdict.failures == (FAILURE,)

    def test_the_job_succeeds_when_all_nodes_have(self) -> None:
        """And not before."""
        nodes = self._in_order(3, 3, 3)
        nodes[0].job.report_success()
        nodes[1].job.report_success()
        assert [node.verdict for node in nodes] == [None] * 3
        nodes[2].job.report_success()
        for node in nodes:
            node.wait_for(ChangeKind.CLOSED)
            assert node.verdict is not None
            assert node.verdict.outcome == "succeeded"
            assert node.handler.is_closed()

    def test_a_notice_reaches_all_others(self) -> None:
        """And the round goes on."""
        nodes = self._in_order(3, 3, 3)
        nodes[1].job.send_notice(signal.SIGUSR1)
        for node in (nodes[0], nodes[2]):
            assert node.wait_for(ChangeKind.NOTICE).signum == signal.SIGUSR1
        assert not any(node.is_waiting or node.told for node in nodes)

    # --- close ------------------------------------------------------------------------------------

    def test_closing_is_for_all_and_for_good(self) -> None:
        """Nodes that run are told, those that wait get an error, and so do later ones."""
        nodes = self._in_order(2, 2, 2)
        spare = self.node(2, 2).join()
        eventually(lambda: spare.has_come, "the spare is there")
        nodes[1].handler.set_closed()
        for node in nodes:
            change = node.wait_for(ChangeKind.CLOSED)
            assert change.reason
            assert node.handler.is_closed()
            with pytest.raises(RendezvousClosedError):
                node.join().round()
        for node in (spare, self.node(2, 2).join()):
            with pytest.raises(RendezvousClosedError):
                node.round()
            assert node.verdict is not None
            assert node.verdict.outcome == "closed"

    def test_shutting_down_twice_is_fine(self) -> None:
        """Also for a handler that was never used, and in every order."""
        used, unused = self.nodes(2, 1, 1)
        meet(used)
        for node in (used, unused):
            assert node.handler.leave()
            assert node.handler.shutdown()
            assert node.handler.leave()

    def test_leaving_ends_the_own_wait(self) -> None:
        """An agent that is told to stop does so, also while it waits for others."""
        node = self.node(2, 2).join()
        eventually(lambda: node.has_come, "it waits")
        node.handler.leave()
        with pytest.raises(RendezvousError):
            node.round()

    # --- what is wrong ----------------------------------------------------------------------------

    def test_too_few_nodes_in_time(self) -> None:
        """Everybody who waits is told."""
        nodes = [self.node(3, 4, index=index, join_timeout=1.0).join() for index in (0, 2)]
        for node in nodes:
            with pytest.raises(RendezvousTimeoutError):
                node.round()

    @pytest.mark.parametrize(
        ("settings", "difference"),
        [({"max_restarts": 5}, "restarts"), ({"max_nodes": 4}, "nodes")],
    )
    def test_other_settings_are_refused(self, settings: dict[str, int], difference: str) -> None:
        """With what is different, and without harm to the others."""
        nodes = self._in_order(2, 2, 3)
        stranger = self.node(2, settings.pop("max_nodes", 3), **settings)  # type: ignore[arg-type]
        with pytest.raises(RendezvousClosedError, match=difference):
            stranger.join().round()
        assert not any(node.handler.is_closed() for node in nodes)

    @pytest.mark.parametrize("other", ["none", "another"])
    def test_a_node_without_the_jobs_token_is_refused(self, other: str, tmp_path: Path) -> None:
        """Whether it has none or another; those who have it meet."""
        (tmp_path / "ours").write_text("a token of sixteen bytes or more")
        (tmp_path / "another").write_text("another token of sixteen bytes")
        nodes = self.nodes(2, 2, 2, token_file=str(tmp_path / "ours"))
        meet(*nodes)
        options = {} if other == "none" else {"token_file": str(tmp_path / other)}
        stranger = self.node(2, 2, **options)  # type: ignore[arg-type]
        with pytest.raises(RendezvousError, match="token"):
            stranger.join().round()
        assert not any(node.handler.is_closed() for node in nodes)

    @pytest.mark.parametrize("kind", _GARBAGE)
    def test_garbage_from_one_node_harms_no_other(self, kind: str) -> None:
        """Whatever it leaves behind; the two others meet."""
        first = self.node(2, 3).join()
        eventually(lambda: first.has_come, "the first one leads")
        hostile = self.node(2, 3, is_quick=True)
        hostile.wire.garble = lambda key, value: _GARBAGE[kind](value)
        hostile.join()
        # More than once, or it may not have arrived.
        eventually(
            lambda: hostile.wire.operations["beat"] > 1 or not hostile.is_waiting,
            "garbage is there",
        )
        hostile.kill()
        other = self.node(2, 3).join()
        met(first, other)

    @pytest.mark.parametrize("kind", _GARBAGE)
    def test_garbage_from_the_leader_is_an_error(self, kind: str) -> None:
        """For everybody who reads it, and within bounds: nobody waits for ever."""
        leader = self.node(2, 2, join_timeout=5.0)
        leader.wire.garble = lambda key, value: _GARBAGE[kind](value)
        leader.join()
        eventually(
            lambda: leader.wire.operations.total() > 1 or not leader.is_waiting, "garbage is there"
        )
        other = self.node(2, 2, join_timeout=5.0).join()
        with pytest.raises(RendezvousError):
            other.round()

    # --- helpers ----------------------------------------------------------------------------------

    def _in_order(
        self, count: int, min_nodes: int, max_nodes: int, **options: object
    ) -> list[Node]:
        """Nodes that have met, in order of their ranks; the first one leads."""
        nodes = self.nodes(count, min_nodes, max_nodes, **options)
        nodes[0].join()
        eventually(lambda: nodes[0].has_come, "the first one has come")
        for node in nodes[1:]:
            node.join()
        rounds = met(*nodes)
        ranks = {id(node): one.rank for node, one in zip(nodes, rounds, strict=True)}
        return sorted(nodes, key=lambda node: ranks[id(node)])
