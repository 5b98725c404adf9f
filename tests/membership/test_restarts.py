"""The restart policy of a job: asked by whoever leads, on what all leaders before have decided."""

from __future__ import annotations

from plaunch.restarts import Decision, RestartAction


class Policy:
    """Decides as it is told, and keeps what it was asked."""

    def __init__(self, *decisions):
        self.decisions, self.asked = list(decisions), []

    def decide(self, failure, history):
        self.asked.append((failure, history))
        return self.decisions.pop(0)


def restart(**options):
    return Decision(RestartAction.RESTART, **options)


def stop(reason):
    return Decision(RestartAction.STOP, reason)


def test_it_decides_whatever_the_budget_says(simulate):
    policy = Policy(restart(reason="once more"), stop("that is enough"))
    job = simulate(min_nodes=2, max_nodes=2, max_restarts=0)
    nodes = [job.add(restart_policy=policy) for _ in range(2)]
    job.settle()
    nodes[1].fail()
    job.settle()
    assert nodes[0].state.attempt == 1
    assert nodes[0].state.reason.endswith("; once more")
    nodes[0].fail()
    job.have_verdict(nodes)
    assert nodes[1].verdict.reason.endswith("; that is enough")
    (first, before), (second, history) = policy.asked
    assert (first.rank, first.attempt, before) == (1, 0, ())
    assert (second.rank, second.attempt) == (0, 1)
    assert [(one.failure.rank, one.decision.reason) for one in history] == [(1, "once more")]


def test_the_next_round_waits_as_long_as_it_wants(simulate):
    policy = Policy(restart(delay=30.0))
    job = simulate(min_nodes=2, max_nodes=2)
    nodes = [job.add(restart_policy=policy) for _ in range(2)]
    job.settle()
    nodes[0].fail()
    assert not job.run(29.0, job.is_settled)
    job.settle(seconds=5.0)
    assert nodes[0].state.pause == 0.0


def test_another_leader_knows_what_was_decided(simulate):
    policy = Policy(restart(reason="one", without=("h7",)), restart(reason="two"))
    job = simulate(min_nodes=2, max_nodes=3)
    nodes = [job.add(restart_policy=policy) for _ in range(3)]
    job.settle()
    nodes[2].fail()
    job.settle()
    job.kill(job.leader)
    job.settle()
    job.living[0].fail()
    job.settle()
    failure, history = policy.asked[1]
    assert [(one.decision.reason, one.decision.without) for one in history] == [("one", ("h7",))]
    assert failure.started > 0.0


def test_without_a_decision_the_budget_decides(simulate):
    job = simulate(min_nodes=1, max_nodes=1, max_restarts=0)
    node = job.add(restart_policy=Policy(None))
    job.settle()
    node.fail()
    job.have_verdict([node])
