"""Checks of rounds: nodes that join, leave or are lost; ranks; spares."""

from __future__ import annotations

import time

import pytest
from plaunch.errors import RendezvousClosedError, RendezvousGracefulExitError
from plaunch.rendezvous import ChangeKind, WorldRanks

from plaunch_testing.conformance.job_suite import FAILURE, JobSuite
from plaunch_testing.conformance.nodes import are_alone, eventually, meet, met


class Rounds(JobSuite):
    """How rounds form and end."""

    # --- join -------------------------------------------------------------------------------------

    @pytest.mark.parametrize("count", [1, 2, 5])
    def test_nodes_meet(self, count: int) -> None:
        """All join one round, with different ranks and one address for the workers' store."""
        for one in meet(*self.nodes(count, count, count)):
            assert one.attempt == 0
            assert one.reason == ""
            assert one.bootstrap_store_info.master_addr
            assert 0 < one.bootstrap_store_info.master_port < 65536

    def test_a_round_is_complete_after_the_last_call(self) -> None:
        """With fewer than the maximum of nodes, a round completes after the last call."""
        meet(*self.nodes(2, 2, 4))

    def test_a_round_waits_for_the_fewest_nodes(self) -> None:
        """A single node waits for the minimum of nodes, even with no last call."""
        one, other = self.nodes(2, 2, 2, last_call_timeout=0)
        one.join()
        eventually(lambda: one.is_waiting, "the first one waits")
        other.join()
        met(one, other)

    def test_ranks_of_workers(self) -> None:
        """Nodes may have different numbers of workers, and different roles."""
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
        """Jobs with different run ids may share a store."""
        own = [self.node(1, 1), self.node(1, 1, run_id=f"{self._run_id}/other")]
        for node in own:
            meet(node)

    def test_a_crowd_meets(self) -> None:
        """Many nodes join at once, and the operations of each do not grow with their number."""
        few = self.nodes(5, 5, 5, run_id=f"{self._run_id}-few")
        crowd = self.nodes(self.crowd, self.crowd, self.crowd)
        meet(*few)
        meet(*crowd)
        # Without heartbeats, and without the leader, whose work grows with the number of nodes.
        cost, *_ = sorted(node.connections.operations["add"] for node in few)
        costs = sorted(node.connections.operations["add"] for node in crowd)
        assert costs[len(costs) * 9 // 10] <= cost + 2
        # End the job: leaving one by one at the end of the test would take long.
        crowd[0].job.end_job("they have met")
        for node in crowd:
            node.wait_for(ChangeKind.CLOSED)

    # --- late join --------------------------------------------------------------------------------

    def test_a_late_node_is_admitted(self) -> None:
        """The others are notified; nodes of the previous round keep their ranks."""
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

    def test_a_node_that_comes_after_the_end_gets_the_verdict(self) -> None:
        """It cannot join, and gets the verdict of the job."""
        (node,) = self.nodes(1, 1, 1)
        meet(node)
        node.job.report_success()
        node.wait_for(ChangeKind.CLOSED)
        late = self.node(1, 1).join()
        with pytest.raises(RendezvousClosedError):
            late.round()
        assert late.verdict is not None
        assert late.verdict.outcome == "succeeded"
        assert late.verdict.is_past

    # --- requests ---------------------------------------------------------------------------------

    @pytest.mark.parametrize("who", ["the leader", "another"])
    def test_a_node_asks_for_another_round(self, who: str) -> None:
        """The others are notified, and all form a new round; this is not counted as a restart."""
        nodes = self.in_order(3, 3, 3)
        one = nodes[0 if who == "the leader" else 1]
        one.job.request_round("a plugin: no progress")
        for node in nodes:
            if node is not one:
                assert "no progress" in node.wait_for(ChangeKind.RESTART).reason
        assert {formed.attempt for formed in meet(*nodes)} == {0}

    def test_a_node_ends_the_job(self) -> None:
        """All nodes get the verdict with the reason."""
        nodes = self.in_order(2, 2, 2)
        nodes[1].job.end_job("a plugin: enough")
        for node in nodes:
            node.wait_for(ChangeKind.CLOSED)
            assert node.verdict is not None
            assert node.verdict.outcome == "stopped"
            assert "enough" in node.verdict.reason
            assert not node.verdict.is_past

    # --- leave and loss ---------------------------------------------------------------------------

    @pytest.mark.parametrize("who", ["the leader", "another"])
    def test_a_node_leaves(self, who: str) -> None:
        """The others are notified, and form a round without it at once."""
        nodes = self.in_order(3, 2, 3)
        leaver = nodes.pop(0 if who == "the leader" else 1)
        assert leaver.handler.leave()
        for node in nodes:
            assert node.wait_for(ChangeKind.LEFT).reason
        assert {one.attempt for one in meet(*nodes)} == {0}

    @pytest.mark.parametrize("who", ["the leader", "another"])
    def test_a_node_is_lost(self, who: str) -> None:
        """The others are notified, and form a round without it, without a restart."""
        nodes = self.in_order(3, 2, 3, is_quick=True)
        victim = nodes.pop(0 if who == "the leader" else 1)
        victim.kill()
        for node in nodes:
            assert node.wait_for(ChangeKind.LOST).reason
        assert {one.attempt for one in meet(*nodes)} == {0}

    def test_a_lost_node_comes_back(self) -> None:
        """A new launcher on the same host joins again."""
        nodes = self.in_order(2, 1, 2, is_quick=True)
        nodes[1].kill()
        nodes[0].wait_for(ChangeKind.LOST)
        meet(nodes[0])
        back = self.node(1, 2, is_quick=True).join()
        nodes[0].wait_for(ChangeKind.ARRIVED)
        nodes[0].join()
        met(nodes[0], back)

    def test_a_node_that_dies_while_it_waits_is_not_in_the_round(self) -> None:
        """The others do not wait for it forever."""
        one, victim, other = self.nodes(3, 3, 3, is_quick=True)
        one.join()
        eventually(lambda: one.connections.operations["beat"] > 1, "the first one waits")
        victim.join()
        eventually(lambda: victim.connections.operations["beat"] > 1, "the second one waits")
        victim.kill()
        eventually(lambda: not victim.is_waiting, "the victim is dead")
        # With the victim the round would be complete: wait until its loss is noticed.
        eventually(lambda: one.considers_lost(victim), "the first one, which leads, has noticed")
        replacement = self.node(3, 3, is_quick=True).join()
        other.join()
        met(one, replacement, other)

    def test_a_leader_dies_at_any_step(self) -> None:
        """The two others form a round without it, and without a restart.

        Each step has its own job; all jobs run at once.
        """
        jobs = []
        for step in range(1, self.steps + 1):
            run_id = f"{self._run_id}-{step}"
            leader, *others = self.nodes(3, 2, 3, run_id=run_id, is_quick=True)
            leader.connections.dies_at = step
            jobs.append((leader, others))
        for leader, _ in jobs:
            leader.join()
        for leader, others in jobs:
            # The first node leads.
            eventually(lambda: leader.has_joined, "it has joined, or is dead")  # noqa: B023 - called now
            for node in others:
                node.follow()
        for leader, others in jobs:
            # It may survive until the round is formed, and die at its next heartbeat.
            eventually(lambda: leader.connections.is_cut, "the leader dies")  # noqa: B023
            eventually(
                lambda: are_alone(others),  # noqa: B023
                f"the others meet after its death before operation {leader.connections.dies_at}: "
                f"{leader.connections.operations}",
            )

    # --- ranks ------------------------------------------------------------------------------------

    def test_a_given_index_is_the_rank(self) -> None:
        """The order of arrival does not matter."""
        nodes = [self.node(3, 3, index=index) for index in (2, 0, 1)]
        assert [one.rank for one in meet(*nodes)] == [2, 0, 1]

    def test_an_index_that_was_given_twice_is_refused(self) -> None:
        """One of the two joins; the other gets an error that names the index."""
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
        """Nodes keep their ranks from round to round; a new node gets the free rank."""
        nodes = self.in_order(3, 2, 3)
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
        """Until then it waits without an error, for longer than the join timeout."""
        nodes = self.in_order(2, 2, 2, is_quick=True)
        join_timeout = 2.5  # seconds, within which a busy machine forms a round
        spare = self.node(2, 2, is_quick=True, join_timeout=join_timeout).join()
        began = time.monotonic()
        eventually(lambda: time.monotonic() - began > join_timeout + 0.5, "the time is over")
        assert spare.is_waiting
        nodes[1].kill()
        nodes[0].wait_for(ChangeKind.LOST)
        nodes[0].join()
        met(nodes[0], spare)

    def test_a_spare_goes_when_the_job_has_succeeded(self) -> None:
        """Its wait ends without an error."""
        nodes = self.in_order(2, 2, 2)
        spare = self.node(2, 2).join()
        eventually(lambda: spare.has_joined, "the spare has joined")
        for node in nodes:
            node.job.report_success()
        with pytest.raises(RendezvousGracefulExitError):
            spare.round()
