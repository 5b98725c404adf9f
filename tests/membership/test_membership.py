"""The behaviour of nodes, one fault at a time, in simulated time."""

from __future__ import annotations

import pytest
from plaunch.errors import RendezvousClosedError, RendezvousGracefulExitError
from plaunch.rendezvous import JobOutcome
from plaunch.rendezvous.api import ChangeKind
from plaunch_membership import transitions
from plaunch_membership.arrivals import Arrivals
from plaunch_membership.failures import JobFailure
from plaunch_membership.keys import job_key
from plaunch_membership.state import JobPhase

from helpers.crowds import Crowd


def test_a_round_is_complete_at_max(simulate):
    job = simulate(min_nodes=2, max_nodes=3)
    nodes = [job.add() for _ in range(3)]
    assert job.settle(*nodes, seconds=1.0) == [0, 1, 2]
    assert {n.place.nodes for n in nodes} == {3}


def test_a_round_is_complete_some_time_after_min(simulate):
    job = simulate(min_nodes=2, max_nodes=4, last_call_timeout=7.0)
    began = job.now
    job.gather(2)
    assert 7.0 <= job.now - began < 8.1


def test_too_few_nodes_wait(simulate):
    job = simulate(min_nodes=3, max_nodes=3)
    nodes = [job.add(), job.add()]
    assert not job.run(1000.0, lambda: any(node.place for node in nodes))
    assert not any(node.error for node in nodes)


def test_the_host_of_the_store_gets_rank_0(simulate):
    job = simulate(min_nodes=3, max_nodes=3)
    assert job.settle(job.add(), job.add(is_host=True), job.add()) == [1, 0, 2]


@pytest.mark.parametrize("min_nodes", [1, 2])
def test_the_same_index_twice_is_refused_by_name(simulate, min_nodes):
    """Whether or not the others can continue without it."""
    job = simulate(min_nodes=min_nodes, max_nodes=2)
    first = job.add(host="a", index=1)
    job.refuse("index 1", "a", host="b", index=1)
    if min_nodes == 1:
        job.settle(first)
    else:
        assert job.settle(first, job.add(index=0)) == [1, 0]


@pytest.mark.parametrize("early_looks", range(4))
def test_an_alarm_that_fires_while_the_writer_works_is_not_missed(settled, early_looks):
    job, (first,) = settled(1, max_nodes=3, arrival_delay=3.0, keep_alive_interval=30.0)
    late = job.add()
    job.run(0.5)
    alarm = late.tasks["writer"].wakes_at  # when it asks for a place
    assert alarm < job.now + 3.0
    times = [alarm - 0.001] * early_looks  # what it reads first
    job.now = alarm
    late.membership.clock = lambda: times.pop() if times else job.now
    late.nudge()
    job.run(1.0, lambda: first.received)
    assert first.kinds == ["arrived"]


@pytest.mark.parametrize(("stop_timeout", "nodes"), [(0.0, 1), (30.0, 2)])
def test_survivors_have_time_to_stop_their_workers(simulate, stop_timeout, nodes):
    """Otherwise nodes that are stopping would be left out, arrive again, and end the round."""
    job = simulate(min_nodes=1, max_nodes=2, last_call_timeout=1.0)
    slow = job.add(stop_timeout=stop_timeout)
    job.settle(slow)
    slow.is_slow_until = job.now + 20.0
    late = job.add()
    job.run(15.0)
    assert (late.place.nodes if late.place else 2) == nodes
    if nodes == 2:
        job.settle(slow, late)


def test_a_spare_waits_and_takes_the_place_of_a_node_that_leaves(settled):
    job, (first, second) = settled(2)
    spare = job.add()
    job.run(1000.0)
    assert spare.place is None
    assert spare.error is None
    assert first.kinds == []
    first.agent.leave("was stopped")
    assert job.settle(second, spare) == [1, 0]
    assert second.kinds == ["left"]
    assert "was stopped" in second.received[0].reason
    assert first.has_ended


def test_a_spare_that_leads_notices_a_loss_as_soon_as_the_store_reports_it(settled):
    """It need not wait for another heartbeat of the members, which it has never seen before."""
    job, (first, second) = settled(2, absence_is_loss=True, keep_alive_interval=100.0)
    spare = job.add()
    leader = first.state.leader
    take_lead = spare.membership.change(
        lambda state: transitions.lead(state, spare.name, leader, "to try it")
    )
    spare.begin("taking the lead", take_lead)
    assert job.run(1.0, lambda: spare.state.leader == spare.name), job.describe()
    job.run(1.0)
    job.kill(second)
    job.board.connect().delete(spare.membership.keys.beat(second.name))
    for node in (first, spare):
        node.writer.is_beat_due = True
        node.nudge()
    job.settle(first, spare, seconds=10.0)
    assert first.kinds[-1] == "lost"


@pytest.mark.parametrize(("who", "seconds"), [("the leader", 15.0), ("another", 5.5)])
def test_a_lost_node_is_detected_and_costs_no_attempt(settled, who, seconds):
    job, nodes = settled(3, min_nodes=1)
    lost = job.leader if who == "the leader" else nodes[1]
    one, other = (node for node in nodes if node is not lost)
    job.kill(lost)
    began = job.now
    assert sorted(job.settle(one, other, seconds=seconds)) == [0, 1]
    assert job.now - began >= 3.0
    assert one.kinds == ["lost"]
    assert "no heartbeat" in one.received[0].reason
    assert one.place.attempt == 0
    assert one.state.leader in {one.name, other.name}


@pytest.mark.parametrize("step", range(60))
def test_a_leader_that_dies_at_any_step_is_replaced(simulate, step):
    """Each operation of the leader is its last one once."""
    job = simulate(min_nodes=2, max_nodes=3)
    leader, *others = [job.add(), job.add(), job.add()]
    done = 0
    while done < step and job.step():
        done = sum(leader.operations.values())
    job.kill(leader)
    job.settle(*others, seconds=60.0)
    assert sorted(node.place.rank for node in others) == [0, 1]
    formed = [state.round for state in job.states if state.event.kind == "formed"]
    assert len(formed) == len(set(formed))


def test_survivors_keep_their_ranks(simulate):
    job = simulate(min_nodes=2, max_nodes=4)
    nodes = [job.add() for _ in range(4)]
    assert job.settle(*nodes) == [0, 1, 2, 3]
    job.kill(nodes[1])
    assert job.settle(nodes[0], nodes[2], nodes[3]) == [0, 2, 1]
    late = job.add()
    assert job.settle(nodes[0], nodes[2], nodes[3], late) == [0, 2, 1, 3]


def test_a_failure_anywhere_is_another_attempt_everywhere(settled):
    job, nodes = settled(3, max_restarts=1)
    nodes[2].fail()
    job.settle(*nodes, seconds=2.0)
    assert [node.place.attempt for node in nodes] == [1, 1, 1]
    assert nodes[0].kinds == ["failed"]
    assert {(n.place.reason, n.place.decision) for n in nodes} == {
        ("rank 2 failed", "restart 1 of 1")
    }


def test_a_node_that_requests_the_next_round_has_no_failure_to_report(settled):
    """The first failure is decided at once when no agent can still report failures."""
    job, nodes = settled(2)
    nodes[1].is_slow_until = job.now + 60.0
    nodes[0].fail()
    job.run(0.1)
    assert nodes[0].state.phase is JobPhase.SETTLING
    nodes[1].want_round()
    job.settle(*nodes, seconds=0.0)
    assert [node.place.attempt for node in nodes] == [1, 1]


def test_without_restarts_left_all_get_the_same_verdict(settled):
    job, nodes = settled(3, max_restarts=0)
    nodes[1].fail(JobFailure(1, 6.0, "rank 1 failed: connection reset"))
    nodes[2].fail(JobFailure(2, 4.0, "rank 2 was killed", {"exitcode": 3}))
    job.run(3.0)
    verdicts = [node.verdict for node in nodes]
    assert verdicts[0] == verdicts[1] == verdicts[2]
    assert verdicts[0].outcome == "failed"
    assert [f.rank for f in verdicts[0].failures] == [2, 1]
    assert verdicts[0].failures[0].detail == {"exitcode": 3}
    assert all(isinstance(node.error, RendezvousClosedError) for node in nodes)


def test_only_a_spare_logs_that_it_waits_for_a_place(settled, caplog):
    """A member whose worker has failed joins the next round before it reads its own failure."""
    job, nodes = settled(2)
    deaf = nodes[1].tasks.pop("watcher")
    nodes[1].fail()
    job.run(1.0)
    assert nodes[1].membership.part.joined[0] == 1
    nodes[1].tasks["watcher"] = deaf
    job.settle(*nodes)
    assert "waits for a place" not in caplog.text
    spare = job.add()
    job.run(1.0)
    assert "waits for a place" in caplog.text
    first = spare.membership.part.joined[0]
    nodes[0].fail()
    job.settle(*nodes)
    job.run(1.0)
    assert spare.membership.part.joined[0] == first + 1
    assert caplog.text.count("waits for a place") == 1


def test_failures_after_the_loss_of_a_node_cost_nothing(settled):
    """Workers fail because their peers disappear, long before the node is known to be lost."""
    job, nodes = settled(2, min_nodes=1, max_restarts=0)
    job.kill(nodes[0])
    nodes[1].fail()
    job.settle(nodes[1], seconds=20.0)
    assert nodes[1].place.attempt == 0
    assert "was lost" in nodes[1].place.reason


@pytest.mark.parametrize("victim", [0, 2])
def test_a_waiting_node_learns_at_once_who_was_lost(settled, victim):
    """Its workers have failed before because their peers were gone, and its agent waits."""
    job, nodes = settled(3, min_nodes=3, max_restarts=0)
    index = nodes[victim].place.rank
    waiting = [node for node in nodes if node is not nodes[victim]]
    job.kill(nodes[victim])
    for node in waiting:
        node.fail()
    job.run(1.0)
    for node in waiting:
        node.agent.want_round()
    assert job.run(20.0, lambda: all(node.membership.news.losses for node in waiting))
    for node in waiting:
        (loss,) = node.membership.news.losses
        assert (loss.kind.value, loss.node, loss.index) == (
            "lost",
            nodes[victim].membership.identity.host,
            index,
        )
        assert f"(index {index}) was lost: no heartbeat for " in node.state.reason


def test_a_failure_restarts_finished_nodes_too(settled):
    job, nodes = settled(2)
    nodes[0].agent.succeed()
    job.run(5.0)
    nodes[1].fail()
    job.settle(*nodes)
    assert nodes[0].place.attempt == 1


def test_no_node_is_admitted_after_one_has_finished(settled):
    job, nodes = settled(2, min_nodes=1, max_nodes=3)
    nodes[0].agent.succeed()
    job.run(5.0)
    late = job.add()
    job.run(20.0)
    assert late.place is None
    assert {*nodes[1].kinds} <= {"ending"}
    nodes[1].agent.succeed()
    job.run(2.0)
    assert isinstance(late.error, RendezvousGracefulExitError)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_finished_node_may_leave(settled, is_killed):
    """After its exit barrier, or at once: the others continue, and can still end the job."""
    job, nodes = settled(2)
    nodes[0].agent.succeed()
    job.run(1.0)
    if is_killed:
        job.kill(nodes[0])
    else:
        nodes[0].agent.leave("has waited long enough")
    job.run(60.0)
    assert nodes[0].has_ended != is_killed
    assert {*nodes[1].kinds} <= {"ending"}
    nodes[1].agent.succeed()
    job.run(5.0)
    assert nodes[1].verdict.outcome == "succeeded"


def notices(nodes):
    return [[c.signum for c in n.received if c.kind is ChangeKind.NOTICE] for n in nodes]


def test_concurrent_notices_are_one_and_not_returned_to_their_senders(settled):
    job, nodes = settled(5)
    version = nodes[0].state.version
    for node in nodes[:4]:
        node.agent.send_notice(10)
    job.run(5.0)
    # The node that its scheduler did not signal receives it once, however late the others write.
    assert notices(nodes) == [[], [], [], [], [10]]
    assert nodes[0].state.version == version + 1
    # Another signal, or the same one later, is another notice.
    nodes[0].agent.send_notice(12)
    nodes[1].agent.send_notice(10)
    job.run(5.0)
    assert [sorted(heard) for heard in notices(nodes)] == [
        [10],
        [12],
        [10, 12],
        [10, 12],
        [10, 10, 12],
    ]


def test_a_notice_without_workers_hides_no_later_one(simulate):
    job = simulate(min_nodes=2, max_nodes=2)
    nodes = [job.add()]
    nodes[0].agent.send_notice(10)  # while it still waits for the other
    nodes.append(job.add())
    job.settle(*nodes)
    nodes[1].agent.send_notice(10)
    job.run(5.0)
    assert notices(nodes) == [[10], []]


def test_closing_ends_the_job_on_all_nodes(settled):
    job, nodes = settled(2)
    nodes[0].agent.close("enough")
    job.run(1.0)
    assert {node.verdict.outcome for node in nodes} == {"closed"}
    job.refuse("enough")


def test_a_leave_is_announced_before_the_workers_are_stopped(settled):
    """The others need not wait until it has left, and do not admit it again."""
    job, nodes = settled(3, min_nodes=1)
    assert job.leader is nodes[0]
    nodes[0].agent.announce_leave("SIGTERM received")
    job.settle(*nodes[1:], seconds=2.0)
    assert "SIGTERM received" in nodes[1].received[0].reason
    job.run(20.0)
    assert nodes[1].place.attempt == 0
    assert len(nodes[1].received) == 1
    nodes[0].agent.leave("it is done")
    job.run(20.0)
    assert nodes[0].has_ended
    assert len(nodes[1].received) == 1


@pytest.mark.parametrize("who", ["the leader", "another"])
def test_a_node_requests_another_round(settled, who):
    """All take part with the same ranks, and no attempt is used."""
    job, nodes = settled(3, min_nodes=1)
    leader = nodes[0].state.leader
    one = next(node for node in nodes if (node.name == leader) == (who == "the leader"))
    ranks = [node.place.rank for node in nodes]
    one.agent.request_round("the watch: no progress")
    one.agent.want_round()  # as its agent does when its workers have stopped
    job.settle(*nodes)
    assert [node.place.rank for node in nodes] == ranks
    assert {(node.place.round, node.place.attempt) for node in nodes} == {(1, 0)}
    assert nodes[0].state.leader == leader
    others = [node for node in nodes if node is not one]
    assert [node.kinds for node in others] == [["restart"]] * 2
    assert one.kinds == []
    assert "requests a restart: the watch: no progress" in one.place.reason


def test_two_requests_for_another_round_lead_to_one(settled):
    job, nodes = settled(2, min_nodes=1)
    for node in nodes:
        node.agent.request_round("now")
        node.agent.want_round()
    job.settle(*nodes)
    job.run(10.0)
    assert {(node.place.round, node.place.attempt) for node in nodes} == {(1, 0)}


# --- run ids --------------------------------------------------------------------------------------


def test_other_settings_are_refused_by_name(simulate):
    job = simulate(min_nodes=1, max_nodes=3, max_restarts=3)
    job.settle(job.add(host="first"))
    parts = ("second", "first", "1:4 here, 1:3 there", "--max-restarts=1 here, 3 there")
    job.refuse(*parts, host="second", max_nodes=4, max_restarts=1)


def test_a_refused_node_is_described_until_it_has_joined(simulate):
    job = simulate(min_nodes=2, max_nodes=2, max_restarts=3)
    first = job.add(host="first")

    def shown():
        job.run(3.0)  # the leader writes the summary of arrivals
        arrivals = Arrivals(first.membership)
        arrivals.describe()
        job.run(1.0)
        return arrivals.describe()

    assert shown() == "2 nodes; 1 came: first"
    job.refuse(host="second", max_restarts=1)
    refused = "2 nodes; 1 came: first; refused: second (--max-restarts=1 there, 3 here)"
    assert shown() == refused
    job.add(host="second")
    assert "refused" not in shown()


def test_settings_of_a_dead_job_are_ignored(settled, caplog):
    job, (first,) = settled(1)
    job.kill(first)
    job.settle(job.add(max_restarts=0, max_nodes=1), seconds=30.0)
    assert "no live nodes" in caplog.text


@pytest.mark.parametrize(
    ("there", "here", "says"),
    [
        (None, b"s" * 16, "not signed"),
        (b"s" * 16, None, "no job token"),
        (b"s" * 16, b"t" * 16, "wrong signature"),
    ],
)
def test_another_token_is_refused(simulate, there, here, says):
    job = simulate(min_nodes=1, max_nodes=2)
    first = job.add(token=there)
    job.settle(first)
    job.refuse(says, token=here)
    assert first.kinds == []


def test_a_finished_run_id_returns_its_verdict_for_a_time(settled):
    job, (first,) = settled(1, verdict_ttl=100.0)
    first.agent.succeed()
    job.run(1.0)
    job.refuse("succeeded")
    job.run(200.0)
    job.settle(job.add())


@pytest.mark.parametrize("seconds", [0.0, 30.0])
def test_a_crashed_job_starts_again(settled, caplog, seconds):
    """Also immediately, and with all restarts."""
    job, nodes = settled(2)
    nodes[0].fail()
    job.settle(*nodes)
    for node in nodes:
        job.kill(node)
    job.run(seconds)
    again = [job.add(), job.add()]
    assert sorted(job.settle(*again)) == [0, 1]
    assert {node.place.attempt for node in again} == {0}
    assert "starts again" in caplog.text


@pytest.mark.parametrize("min_nodes", [1, 2])
def test_a_heartbeat_that_expires_is_not_a_sign_of_life(settled, caplog, min_nodes):
    """The job has just crashed, and the leases of its nodes expire."""
    job, (dead,) = settled(1, max_nodes=2)
    job.kill(dead)
    again = job.add(min_nodes=min_nodes)  # with the job's settings, or with others
    job.run(1.5)
    job.store.delete(dead.membership.keys.beat(dead.name))
    if min_nodes == 2:
        job.add(min_nodes=min_nodes)
    job.settle()
    assert again.error is None
    assert again.incarnation != dead.incarnation
    assert "starts again" in caplog.text


def test_a_job_that_was_killed_before_its_first_round_is_continued(simulate):
    job = simulate(min_nodes=2, max_nodes=2)
    job.kill(job.add())
    job.run(30.0)
    job.settle(job.add(), job.add())


# --- cost -----------------------------------------------------------------------------------------


def joining_costs(size):
    """What each node but the leader sends and receives if all start at once."""
    crowd = Crowd(size)
    crowd.add(size)
    crowd.run(1.0)
    assert sorted(node.place.rank for node in crowd.nodes) == list(range(size))
    costs = [node.cost for node in crowd.nodes if not node.leads]
    assert {requests for requests, _, _ in costs} == {3}
    return max(read + written for _, read, written in costs)


def test_a_node_joins_with_three_requests_whatever_the_number_of_nodes():
    few, many = joining_costs(64), joining_costs(4096)
    assert many < 1.05 * few, (few, many)  # ranks have more digits


def test_everything_may_be_carried_out_twice(simulate):
    """As after lost answers: each record of a log has two tickets then."""
    job = simulate(min_nodes=3, max_nodes=3)
    job.repeat = lambda: True
    nodes = job.gather(3)
    nodes[1].fail()
    assert sorted(job.settle(*nodes)) == [0, 1, 2]
    assert [node.place.attempt for node in nodes] == [1, 1, 1]
    for node in nodes:
        node.agent.succeed()
    job.have_verdict(nodes)
    assert {node.verdict.outcome for node in nodes} == {JobOutcome.SUCCEEDED}


def test_an_older_version_at_the_job_is_named_and_takes_no_place(simulate):
    job = simulate(min_nodes=2, max_nodes=2)
    first = job.add()
    key = job_key(first.membership.identity.run_id)
    job.board.data[key] = job.board.data[key].replace(b'{"v":2,', b'{"v":1,', 1)
    before = dict(job.board.data)
    late = job.add()
    assert "protocol version 1; this one speaks 2" in str(late.error)
    assert job.board.data == before
    assert first.error is None


@pytest.mark.parametrize("count", [2, 16, 64])
def test_operations_per_node_do_not_depend_on_the_number_of_nodes(simulate, count):
    job = simulate(min_nodes=count, max_nodes=count)
    leader, *others = [job.add() for _ in range(count)]
    job.settle(leader, *others)
    apart = {("writer", "WriteHeartbeat"), ("watcher", "Wait"), ("watcher", "WaitThenGet")}
    costs = {
        sum(number for what, number in node.operations.items() if what not in apart)
        for node in others
    }
    assert costs == {2}  # the job and its state; the heartbeat and the record
    assert {node.operations["watcher", "WaitThenGet"] for node in others} <= {1, 2}
