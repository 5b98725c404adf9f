"""The objects of an agent: what a launch gives it, and what its loop drives."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, NamedTuple

from plaunch import parts
from plaunch.agent.messages import WaitReporter
from plaunch.agent.worker_store import open_default_store
from plaunch.process.components import ExitRules
from plaunch.process.streams import OutputStats
from plaunch.values import Value, plain_dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plaunch.agent.extensions import Requests
    from plaunch.agent.local_job import LocalJob
    from plaunch.agent.notifications import Notify
    from plaunch.agent.notifier import Notifier
    from plaunch.agent.peers import Peers
    from plaunch.agent.poller import LoopWatchdog, Poller
    from plaunch.agent.results import Results
    from plaunch.agent.rounds import Preconditions, RoundJoiner
    from plaunch.agent.signals import ForwardedSignals, SignalInbox
    from plaunch.agent.status import AgentStatus
    from plaunch.agent.worker_store import OpenStore
    from plaunch.agent.workers import Workers
    from plaunch.health import HealthChecks
    from plaunch.process.components import Binder, Starter, WorkerInfo
    from plaunch.process.signals import SignalPolicy
    from plaunch.rendezvous.job import JobRendezvous
    from plaunch.restarts import RestartPolicy

    WorkerEnv = Callable[[WorkerInfo, Mapping[str, str]], Mapping[str, str]]


def _default_policy() -> SignalPolicy:
    policy: SignalPolicy = parts.load_part(parts.DEFAULT_POLICY)()
    return policy


@plain_dataclass
class AgentServices(Value):
    """The objects that a launch gives its agent. Each has a default.

    Args:
        signal_policy: what signals mean; by default those of `TORCHELASTIC_SIGNALS_TO_HANDLE` stop
            the job.
        restart_policy: decides what follows a failure, unless the rendezvous is a `JobRendezvous`,
            which decides itself; by default `max_restarts` does.
        health_checks: run before this node joins its first round, and after a failure.
        notify: called with each of `plaunch.agent.notifications`; it must not raise or block.
        wait_reporter: shows what a round waits for, and ends a first one that takes too long.
        watchdog: records when the loop goes to sleep and wakes; by default one whose bound exceeds
            the agent's `shutdown_timeout`.
        worker_env: returns more variables for each worker.
        binder: gives workers their devices and processors; by default those of `WorkerSpec`.
        open_store: opens the workers' store, unless `WorkerSpec` leaves it to one of them; by
            default plaunch's own.
        starter: starts the processes of workers; by default they are executed. The caller begins
            and closes it.
        output_stats: counts the workers' output that passes through the launcher.
        keep_daemons: whether processes that workers leave behind may run on after a success.
        stdin: what each worker that is a program reads from its stdin; None for the launcher's own.
        status: the state of the agent, if the caller needs it before there is one.
        exit_rules: what to do about workers that do not exit.
    """

    signal_policy: SignalPolicy = field(default_factory=_default_policy)
    restart_policy: RestartPolicy | None = None
    health_checks: HealthChecks | None = None
    notify: Notify | None = None
    wait_reporter: WaitReporter = field(default_factory=WaitReporter)
    watchdog: LoopWatchdog | None = None
    worker_env: WorkerEnv | None = None
    binder: Binder | None = None
    open_store: OpenStore = open_default_store
    starter: Starter | None = None
    output_stats: OutputStats = field(default_factory=OutputStats)
    keep_daemons: bool = False
    stdin: bytes | None = None
    status: AgentStatus | None = None
    exit_rules: ExitRules = field(default_factory=ExitRules)


class AgentJob(NamedTuple):
    """The job of an agent, and how the agent waits for it.

    Args:
        rendezvous: the job.
        interval: seconds between two calls of `changes`, if no descriptor wakes the agent.
        patience: seconds to wait for the other nodes after success.
        local: the job itself if it has this agent as its only member; None if it has all nodes.
    """

    rendezvous: JobRendezvous
    interval: float
    patience: float
    local: LocalJob | None = None


class LoopComponents(NamedTuple):
    """The components of one run of an agent.

    Args:
        status: of the agent.
        workers: the workers of this node.
        peers: the other nodes.
        joiner: joins rounds.
        preconditions: the health checks of this node.
        results: what has become of the workers.
        notifier: notifies listeners.
        forwarded: passes signals on to the workers.
        inbox: keeps signals until the loop takes them.
        poller: waits, and is woken.
        wait_reporter: shows what a round waits for.
        requests: what other threads request.
    """

    status: AgentStatus
    workers: Workers
    peers: Peers
    joiner: RoundJoiner
    preconditions: Preconditions
    results: Results
    notifier: Notifier
    forwarded: ForwardedSignals
    inbox: SignalInbox
    poller: Poller
    wait_reporter: WaitReporter
    requests: Requests
