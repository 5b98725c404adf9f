"""Bugs that are put into plaunch on purpose, to see that simulated jobs find them.

Each replaces one name of plaunch by something that is wrong. How soon the simulator finds it shows
what its checks and its faults are worth: `tools/simulate --bugs`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True)
class PlantedBug:
    """One bug.

    Args:
        seed: of a simulated job that finds it, the first one; or the name of a script of the tests,
            if few seeds find it.
        what: what is wrong, in a few words.
        target: what is replaced: a module, a colon, and a name in it.
        change: makes the replacement from the original.
    """

    seed: int | str
    what: str
    target: str
    change: Callable[[Any], Any]

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """Replace it for a while."""
        module, _, path = self.target.partition(":")
        *owners, name = path.split(".")
        owner = functools.reduce(getattr, owners, importlib.import_module(module))
        original = vars(owner)[name]
        setattr(owner, name, self.change(original))
        try:
            yield
        finally:
            setattr(owner, name, original)


def returns(value):
    return lambda _: lambda *args, **kwargs: value


def yields_nothing(_):
    def routine(*args, **kwargs):
        return
        yield

    return routine


def write_in_any_case(_):
    def run(self, store):
        store.set(self.key, self.desired)
        return self.desired

    return run


def with_first(choose):
    """Let a result name another first failure."""

    def change(original):
        def error(self, name):
            first = choose(self.failures) if self.failures else None
            return original(replace(self, first_failure=first), name)

        return error

    return change


def after_restart(**changes):
    """Change the state that follows a failure; each is a function of both states."""

    def change(original):
        def restart(state, *args, **kwargs):
            new = original(state, *args, **kwargs)
            return replace(new, **{name: make(state, new) for name, make in changes.items()})

        return restart

    return change


def with_own_first(original):
    def to_verdict(recorded, own, *, is_past):
        verdict = original(recorded, own, is_past=is_past)
        return replace(verdict, first=min(own)) if own else verdict

    return to_verdict


def with_transition(phase, event, make):
    """Decide otherwise in one phase."""

    def change(table):
        from plaunch.agent import machine, states

        key = states.Phase[phase], getattr(states, event)
        assert key in table
        return {**table, key: lambda state, event: make(machine, states, state, event)}

    return change


def without_stop(effects):
    from plaunch.agent import states

    return {**effects, states.StopWorkers: lambda *_: [states.StopSucceeded()]}


def same_ranks(original):
    def world_ranks(nodes):
        ranks = original(nodes)
        return [ranks[0], *ranks[:-1]]

    return world_ranks


def charge_change(original):
    def end_round(state, *args, **kwargs):
        new = original(state, *args, **kwargs)
        return None if new is None else replace(new, attempt=new.attempt + 1)

    return end_round


def without_hangs(original):
    def put(self, request):
        if type(request).__name__ != "Hang":
            original(self, request)

    return put


def always_restart(original):
    def decide(self, *args):
        from plaunch.restarts import Decision, RestartAction

        original(self, *args)
        return Decision(RestartAction.RESTART, reason="again and again")

    return decide


def once_more(original):
    def notify(self, kind, *args):
        original(self, kind, *args)
        if kind.__name__ == "AgentFinished":
            original(self, kind, *args)

    return notify


def with_own_reason(original):
    def place(**fields):
        return original(**{**fields, "reason": f"rank {fields['rank']} says so"})

    return place


def lose_at_once(original):
    def miss(self, observed, beat, now):
        original(self, observed, beat, now)
        observed.is_lost = True

    return miss


def raises(_):
    def routine(self, *args):
        raise KeyError(args)

    return routine


def node_healthy(_):
    from plaunch.agent import states

    return states.NodeHealthy


def begin_with_first(machine, states, state, event):
    formed, actions = machine._round_formed(state, event)
    return (replace(formed, attempt=0) if state.round < 0 else formed), actions


def stop_beating(original):
    def beat(self):
        if self._beats > 3:
            return
        yield from original(self)

    return beat


BUGS = (
    PlantedBug(
        7,
        "a compare-and-set writes in any case",
        "plaunch_membership.operations:CompareSet.run",
        write_in_any_case,
    ),
    PlantedBug(
        15,
        "one missing heartbeat is a loss",
        "plaunch_membership.liveness:LivenessObserver._miss",
        lose_at_once,
    ),
    PlantedBug(
        74,
        "the exit code is that of any failure",
        "plaunch.agent.worker:RunResult.error",
        with_first(max),
    ),
    PlantedBug(
        145,
        "the next round does not wait for a node that leaves",
        "plaunch_membership.stopping:StoppingNodes.time_left",
        returns(-1.0),
    ),
    PlantedBug(
        1,
        "a failure is charged twice",
        "plaunch_membership.transitions:_restart",
        after_restart(attempt=lambda old, new: 2 * new.attempt - old.attempt),
    ),
    PlantedBug(
        38,
        "a failure is not charged",
        "plaunch_membership.transitions:_restart",
        after_restart(attempt=lambda old, new: old.attempt),
    ),
    PlantedBug(
        3,
        "the number of a round is used again",
        "plaunch_membership.transitions:_restart",
        after_restart(round=lambda old, new: old.round),
    ),
    PlantedBug(
        157,
        "the last failure comes first",
        "plaunch_membership.failures:_order",
        lambda original: lambda failure: -original(failure),
    ),
    PlantedBug(
        7,
        "failures are not reported",
        "plaunch_membership.agent_requests:AgentRequests.report",
        returns(None),
    ),
    PlantedBug(
        1,
        "a loss is not noticed",
        "plaunch_membership.shared:PeerStatus.note_losses",
        returns(False),
    ),
    PlantedBug(
        1,
        "nobody takes over from a leader",
        "plaunch_membership.heartbeat:HeartbeatMonitor.take_lead",
        yields_nothing,
    ),
    PlantedBug(
        15,
        "heartbeats stop",
        "plaunch_membership.heartbeat:HeartbeatMonitor.beat",
        stop_beating,
    ),
    PlantedBug(
        1, "threads run on", "plaunch_membership.store_threads:StoreThreads.stop", returns(True)
    ),
    PlantedBug(
        1, "a descriptor stays open", "plaunch_membership.shared:WakePipe.close", returns(None)
    ),
    PlantedBug(
        0,
        "two nodes have the same ranks",
        "plaunch_membership.round_records:world_ranks",
        same_ranks,
    ),
    PlantedBug(
        3,
        "a node puts its own failure first in the verdict",
        "plaunch_membership.handler:to_verdict",
        with_own_first,
    ),
    PlantedBug(
        73,
        "a node does not wait for the others after its success",
        "plaunch.agent.machine:_TABLE",
        with_transition(
            "CLEARING",
            "StopSucceeded",
            lambda machine, states, state, event: machine._finish(
                state, states.Outcome.SUCCEEDED, states.WaitForPeers()
            ),
        ),
    ),
    PlantedBug(
        1,
        "the job has succeeded before its last node",
        "plaunch_membership.node_reports:NodeReports.succeed",
        lambda original: lambda self, round_, nodes: original(self, round_, max(nodes - 1, 1)),
    ),
    PlantedBug(
        3,
        "a stop that was requested ends as a success",
        "plaunch.agent.machine:_TABLE",
        with_transition(
            "RUNNING",
            "StopRequested",
            lambda machine, states, state, event: machine._stop(state, states.Outcome.SUCCEEDED),
        ),
    ),
    PlantedBug(
        48,
        "workers run on after the end of the job",
        "plaunch.agent.machine:_TABLE",
        with_transition(
            "RUNNING",
            "JobEnded",
            lambda machine, states, state, event: machine._finish(state, states.Outcome.CLOSED),
        ),
    ),
    PlantedBug(366, "a hang is forgotten", "plaunch.agent.extensions:Requests.put", without_hangs),
    PlantedBug(
        3,
        "workers are not stopped before the next round",
        "plaunch.agent.effects:_EFFECTS",
        without_stop,
    ),
    PlantedBug(
        7,
        "the budget of restarts has no end",
        "plaunch_restarts.policies:StandardRestartPolicy.decide",
        always_restart,
    ),
    PlantedBug(
        76,
        "a change of the nodes is charged",
        "plaunch_membership.transitions:end_round",
        charge_change,
    ),
    PlantedBug(
        1,
        "a thread ends with an error of plaunch",
        "plaunch_membership.heartbeat:HeartbeatMonitor.take_lead",
        raises,
    ),
    PlantedBug(
        36,
        "a node that joins late begins with the first attempt",
        "plaunch.agent.machine:_TABLE",
        with_transition("JOINING", "RoundFormed", begin_with_first),
    ),
    PlantedBug(0, "an agent ends twice", "plaunch.agent.notifier:Notifier.notify", once_more),
    PlantedBug(
        0,
        "each node has its own reason for a round",
        "plaunch_membership.watcher:RoundPlace",
        with_own_reason,
    ),
    PlantedBug(
        "store-suspended",
        "a late heartbeat counts",
        "plaunch_membership.liveness:LivenessObserver._is_late",
        returns(False),
    ),
    PlantedBug(
        "slots",
        "slots of one leader are those of another",
        "plaunch_membership.keys:Keys.slot",
        lambda original: lambda self, round_, term, node: original(self, round_, 0, node),
    ),
    PlantedBug(
        370,
        "a departure is not noticed",
        "plaunch_membership.shared:PeerStatus.note_departure",
        returns(None),
    ),
    PlantedBug(
        76,
        "records of past rounds stay",
        "plaunch_membership.round_cleanup:RoundCleanup.run",
        yields_nothing,
    ),
    PlantedBug(
        "away",
        "a node that was away starts a round that is over",
        "plaunch_membership.watcher:WatcherRoutine._is_over",
        yields_nothing,
    ),
    PlantedBug(
        666,
        "the clocks of hosts decide which failure came first",
        "plaunch_membership.collected_reports:CollectedReports._find_lead",
        returns(0.0),
    ),
    PlantedBug(
        "late-request",
        "a request for the end changes the exit code after the job has failed",
        "plaunch.agent.agent:SimpleElasticAgent._agreed",
        lambda _: lambda self, outcome: outcome,
    ),
    PlantedBug(
        "unhealthy",
        "health checks exclude no node",
        "plaunch.agent.rounds:NodeUnhealthy",
        node_healthy,
    ),
    PlantedBug(
        6,
        "nodes that have waited in vain end with a code that is not documented",
        "plaunch.errors:RendezvousTimeoutError.exit_code",
        lambda _: 99,
    ),
)
