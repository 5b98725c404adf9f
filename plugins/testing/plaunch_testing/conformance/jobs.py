"""The conformance suite for rendezvous handlers that know the whole job."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from plaunch.errors import RendezvousClosedError, RendezvousError, RendezvousTimeoutError
from plaunch.rendezvous import ChangeKind, NodeSettings

from plaunch_testing.conformance.job_suite import FAILURE, JobSuite, make_failure
from plaunch_testing.conformance.nodes import eventually, meet, met
from plaunch_testing.conformance.rounds import Rounds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_GARBAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty object": lambda value: b"{}",
    "truncated": lambda value: value[: len(value) // 2],
    "of another version": lambda value: value.replace(b'"v":2', b'"v":7', 1),
    "with other fields": lambda value: b'{"v":2,"node":{"a":[]},"beat":"x","incarnation":3}',
    "deeply nested": lambda value: b'{"v":2,"a":' + b"[" * 5000 + b"]" * 5000 + b"}",
    "binary": lambda value: b"\x80\x05\x95\xff",
    "a pickle": lambda value: b"cos\nsystem\n(S'exit 1'\ntR.",
}


class Jobs(JobSuite):
    """The state that all nodes of a job share, and how the job ends."""

    # --- one job ----------------------------------------------------------------------------------

    def test_the_settings_of_prepare_are_used(self) -> None:
        """Role, workers and budget are those that `prepare` got last."""
        nodes = self.nodes(2, 2, 2, nproc=1, max_restarts=0)
        for node, count in zip(nodes, (2, 3), strict=True):
            node.handler.prepare(NodeSettings("trainer", count, 1, stop_timeout=1.0))
        for attempt in (0, 1):
            rounds = meet(*nodes)
            assert {one.attempt for one in rounds} == {attempt}
            assert {(one.ranks.world_size, one.ranks.role_world_size) for one in rounds} == {(5, 5)}
            leader = next(index for index, one in enumerate(rounds) if one.rank == 0)
            assert (rounds[leader].ranks.first_global, rounds[leader].ranks.first_role) == (0, 0)
            other = rounds[1 - leader].ranks
            assert (other.first_global, other.first_role) == ((2, 3)[leader],) * 2
            nodes[0].report(FAILURE)
            nodes[1].wait_for(ChangeKind.FAILED)

    def test_another_budget_of_an_agent_is_refused(self) -> None:
        """A node whose `max_restarts` differs is refused."""
        nodes = self.in_order(2, 2, 3)
        rejected = self.node(2, 3)
        rejected.handler.prepare(NodeSettings("default", 1, 5, stop_timeout=1.0))
        with pytest.raises(RendezvousClosedError, match="restarts"):
            rejected.join().round()
        assert not any(node.handler.is_closed() for node in nodes)

    def test_a_failure_restarts_all_nodes(self) -> None:
        """All form a new round, with the next attempt and the reason."""
        nodes = self.in_order(3, 3, 3)
        for attempt in (1, 2):
            nodes[1].report(FAILURE)
            for node in (nodes[0], nodes[2]):
                node.wait_for(ChangeKind.FAILED)
            rounds = meet(*nodes)
            assert {one.attempt for one in rounds} == {attempt}
            assert all("rank 1" in one.reason for one in rounds)

    def test_failures_on_several_nodes_count_once(self) -> None:
        """They are one attempt, and the first failure is the cause."""
        nodes = self.in_order(2, 2, 2)
        nodes[0].report({0: make_failure(began=1001.0)})
        nodes[1].report(FAILURE)
        rounds = meet(*nodes)
        assert {one.attempt for one in rounds} == {1}
        assert all("rank 1" in one.reason for one in rounds)

    @pytest.mark.parametrize(("max_restarts", "is_final"), [(0, False), (5, True)])
    def test_the_last_failure_ends_the_job(self, max_restarts: int, is_final: bool) -> None:
        """With the same cause, in detail, on all nodes."""
        nodes = self.in_order(3, 3, 3, max_restarts=max_restarts)
        nodes[2].report(FAILURE, is_final=is_final)
        for node in nodes[:2]:
            node.wait_for(ChangeKind.FAILED)
        for node in nodes:
            node.join()
        for node in nodes:
            with pytest.raises(RendezvousClosedError, match="rank 1"):
                node.round()
            assert node.verdict is not None
            assert node.verdict.outcome == "failed"
            assert (node.verdict.first, list(node.verdict.failures)) == (1, [1])
            failure = node.verdict.failures[1]
            assert (failure.host, failure.pid, failure.exitcode) == ("somewhere", 4242, 3)
            assert (failure.last_lines, failure.timestamp) == (["oh no"], 1000.0)

    def test_many_large_failures_end_the_job(self) -> None:
        """All nodes get the first failure with its details, and at least the number of others."""
        nodes = self.in_order(2, 2, 2, max_restarts=0)
        message = "\u00e9" * 4000
        for first, node in enumerate(nodes):
            ranks = range(1000 * first, 1000 * (first + 1))
            node.report({rank: make_failure(1000.0 + rank, message) for rank in ranks})
        for node in nodes:
            node.join()
        for node in nodes:
            with pytest.raises(RendezvousClosedError, match="rank 0"):
                node.round()
            verdict = node.verdict
            assert verdict is not None
            assert verdict.first == 0
            assert verdict.failures[0].text == message
            # Each node has its own failures one by one; the other's may be counted, or too late.
            assert len(verdict.failures) >= 1000
            assert len(verdict.failures) + sum(verdict.counted.values()) in (1000, 2000)

    def test_the_job_succeeds_when_all_nodes_have(self) -> None:
        """The job does not succeed before its last node."""
        nodes = self.in_order(3, 3, 3)
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
        """The round continues."""
        nodes = self.in_order(3, 3, 3)
        nodes[1].job.send_notice(signal.SIGUSR1)
        for node in (nodes[0], nodes[2]):
            assert node.wait_for(ChangeKind.NOTICE).signum == signal.SIGUSR1
        assert not any(node.is_waiting or node.changes for node in nodes)

    # --- close ------------------------------------------------------------------------------------

    def test_closing_is_permanent_and_closes_all_nodes(self) -> None:
        """Running nodes are notified; waiting and later ones get an error."""
        nodes = self.in_order(2, 2, 2)
        spare = self.node(2, 2).join()
        eventually(lambda: spare.has_joined, "the spare is there")
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
        """Unused handlers may be shut down too, in any order with `leave`."""
        used, unused = self.nodes(2, 1, 1)
        meet(used)
        for node in (used, unused):
            assert node.handler.leave()
            assert node.handler.shutdown()
            assert node.handler.leave()

    def test_leaving_ends_a_wait(self) -> None:
        """An agent can stop while it waits for others."""
        node = self.node(2, 2).join()
        eventually(lambda: node.has_joined, "it waits")
        node.handler.leave()
        with pytest.raises(RendezvousError):
            node.round()

    # --- errors -----------------------------------------------------------------------------------

    def test_too_few_nodes_in_time(self) -> None:
        """All waiting nodes get an error."""
        nodes = [self.node(3, 4, index=index, join_timeout=1.0).join() for index in (0, 2)]
        for node in nodes:
            with pytest.raises(RendezvousTimeoutError):
                node.round()

    @pytest.mark.parametrize(
        ("settings", "difference"),
        [({"max_restarts": 5}, "restarts"), ({"max_nodes": 4}, "nodes")],
    )
    def test_other_settings_are_refused(self, settings: dict[str, int], difference: str) -> None:
        """The error names the difference, and the others are not affected."""
        nodes = self.in_order(2, 2, 3)
        rejected = self.node(**{"min_nodes": 2, "max_nodes": 3, **settings})  # type: ignore[arg-type]
        with pytest.raises(RendezvousClosedError, match=difference):
            rejected.join().round()
        assert not any(node.handler.is_closed() for node in nodes)

    @pytest.mark.parametrize("other", ["none", "another"])
    def test_a_node_without_the_jobs_token_is_refused(self, other: str, tmp_path: Path) -> None:
        """A node without a token, or with another one, is refused; nodes with the token meet."""
        (tmp_path / "job_token").write_text("a token of sixteen bytes or more")
        (tmp_path / "another").write_text("another token of sixteen bytes")
        nodes = self.nodes(2, 2, 2, token_file=str(tmp_path / "job_token"))
        meet(*nodes)
        options = {} if other == "none" else {"token_file": str(tmp_path / other)}
        rejected = self.node(2, 2, **options)  # type: ignore[arg-type]
        with pytest.raises(RendezvousError, match="token"):
            rejected.join().round()
        assert not any(node.handler.is_closed() for node in nodes)

    @pytest.mark.parametrize("kind", _GARBAGE)
    def test_garbage_from_one_node_harms_no_other(self, kind: str) -> None:
        """The two others meet, whatever records it leaves behind."""
        first = self.node(2, 3).join()
        eventually(lambda: first.has_joined, "the first one leads")
        hostile = self.node(2, 3, is_quick=True)
        hostile.connections.garble = lambda key, value: _GARBAGE[kind](value)
        hostile.join()
        # Twice, so that the first one has arrived.
        eventually(
            lambda: hostile.connections.operations["beat"] > 1 or not hostile.is_waiting,
            "garbage is there",
        )
        hostile.kill()
        other = self.node(2, 3).join()
        met(first, other)

    @pytest.mark.parametrize("kind", _GARBAGE)
    def test_garbage_from_the_leader_is_an_error(self, kind: str) -> None:
        """Nodes that read it get an error in time."""
        leader = self.node(2, 2, join_timeout=5.0)
        leader.connections.garble = lambda key, value: _GARBAGE[kind](value)
        leader.join()
        eventually(
            lambda: leader.connections.operations.total() > 1 or not leader.is_waiting,
            "garbage is there",
        )
        other = self.node(2, 2, join_timeout=5.0).join()
        with pytest.raises(RendezvousError):
            other.round()


class RendezvousConformance(Rounds, Jobs):
    """Subclass this suite and implement `create`; pytest collects the subclass.

    All handlers of a test must share one store, which must live until the end of the test,
    whichever handler ends first. It may contain data: every test has its own run id.

    Tests that kill a node, or corrupt its writes, intercept its connections to the store. They are
    skipped for handlers other than `DynamicRendezvousHandler`.
    """
