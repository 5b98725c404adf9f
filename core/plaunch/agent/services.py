"""What an agent of plaunch uses beyond torchrun's arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from plaunch import parts

if TYPE_CHECKING:
    from plaunch.agent.notifications import Notify, WorkerEnv
    from plaunch.agent.wait_reporter import WaitReporter
    from plaunch.agent.watchdog import LoopWatchdog
    from plaunch.agent.worker_store import OpenStore
    from plaunch.health import HealthChecks
    from plaunch.process.components import Binder, Starter
    from plaunch.process.signals import SignalPolicy
    from plaunch.process.streams import OutputStats
    from plaunch.restarts import RestartPolicy


class AgentServices(NamedTuple):
    """The objects that a launch gives its agent. Each has a default.

    Args:
        signal_policy: what signals mean; by default those of `TORCHELASTIC_SIGNALS_TO_HANDLE` stop
            the job.
        restart_policy: decides what follows a failure, unless the rendezvous is a `JobRendezvous`,
            which decides itself; by default `max_restarts` does.
        health_checks: run before this node joins its first round, and after a failure.
        notify: called with each of `plaunch.agent.notifications`; it must not raise or block.
        waiting: shows what a round waits for, and ends a first one that takes too long.
        watchdog: records when the loop goes to sleep and wakes.
        worker_env: returns more variables for each worker.
        binder: gives workers their devices and processors; by default those of `WorkerSpec`.
        open_store: hosts the store of the workers, unless `WorkerSpec` leaves that to one of them;
            by default plaunch's own.
        starter: starts the processes of workers; by default they are executed. The caller begins
            and closes it.
        output_stats: counts the workers' output that passes through the launcher.
        keep_daemons: whether processes that workers leave behind may run on after a success.
    """

    signal_policy: SignalPolicy | None = None
    restart_policy: RestartPolicy | None = None
    health_checks: HealthChecks | None = None
    notify: Notify | None = None
    waiting: WaitReporter | None = None
    watchdog: LoopWatchdog | None = None
    worker_env: WorkerEnv | None = None
    binder: Binder | None = None
    open_store: OpenStore | None = None
    starter: Starter | None = None
    output_stats: OutputStats | None = None
    keep_daemons: bool = False

    def get_signal_policy(self) -> SignalPolicy:
        """Return the signal policy, or the default one."""
        if self.signal_policy is not None:
            return self.signal_policy
        policy: SignalPolicy = parts.load_part(parts.DEFAULT_POLICY)()
        return policy


DEFAULT_SERVICES = AgentServices()
