"""The hooks of plaunch.

All hooks run in the launcher, never in a worker, and on a thread that is not the main one; it may
be another thread each time. Implementations are called one after the other, in the order of their
plugins' names. An implementation may leave out arguments that it does not need. Wrappers are
refused: they would run outside of the guard around each implementation.

*Offer* hooks provide components by name. They are called at most once per launch, when a name of
their kind is looked up, and have no parameters. *Contribution* hooks add to what a launch or the
doctor does. An implementation of either ends the launch if it raises, or has not returned within
ten seconds. `--dry-run` and `--doctor` create the components of a launch, too, and start none: to
create one must change nothing.

*Notification* hooks are called when something happens; their result is ignored. The agent waits at
most one second for each implementation. One that raises, or has not returned by then, is reported
with its plugin's name and switched off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import TypeVar

    from plaunch.agent.extensions import Extension
    from plaunch.agent.worker import GroupInfo, RunResult, WorkerState
    from plaunch.agent.worker_store import OpenStore
    from plaunch.doctor import DoctorContext, Finding
    from plaunch.plugin.context import PluginContext
    from plaunch.plugin.kinds import (
        DeviceCounter,
        EngineFactory,
        EventHandlerFactory,
        HealthCheckFactory,
        LogsSpecsFactory,
        RendezvousFactory,
        RestartPolicyFactory,
        Scheduler,
        SignalPolicyFactory,
    )
    from plaunch.process import Binder, Starter
    from plaunch.process.components import WorkerExit, WorkerInfo

    _F = TypeVar("_F", bound=Callable[..., object])

    def hookspec(function: _F) -> _F:
        """Mark a hook specification."""
        return function
else:
    hookspec = pluggy.HookspecMarker("plaunch")

# Marks a function or method as the implementation of the hook of its name.
hookimpl = pluggy.HookimplMarker("plaunch")


# --- offer ----------------------------------------------------------------------------------------


@hookspec
def plaunch_rendezvous_backends() -> Mapping[str, RendezvousFactory]:  # type: ignore[empty-body]
    """Offer rendezvous backends.

    Called: when a backend is looked up by name; never for `--help`.
    Result: factories by name. The selected one is called once with `RendezvousParameters` and
    returns a `RendezvousHandler`. Import heavy packages inside the factory, not before.
    """


@hookspec
def plaunch_logs_specs() -> Mapping[str, LogsSpecsFactory]:  # type: ignore[empty-body]
    """Offer logs specs.

    Called: when a logs spec is looked up by name.
    Result: `LogsSpecs` classes by name. The selected one is constructed once with torchrun's four
    keyword arguments `log_dir`, `redirects`, `tee` and `local_ranks_filter`.
    """


@hookspec
def plaunch_event_handlers() -> Mapping[str, EventHandlerFactory]:  # type: ignore[empty-body]
    """Offer event handlers.

    Called: when an event handler is looked up by name.
    Result: factories by name. A selected one is called once with a `PluginContext` and returns an
    `EventHandler`.
    """


@hookspec
def plaunch_device_counts() -> Mapping[str, DeviceCounter]:  # type: ignore[empty-body]
    """Offer device counters: the words that `--nproc-per-node` accepts instead of a number.

    Called: when `--nproc-per-node` is a word.
    Result: functions by name. The selected one is called once, without arguments, and returns the
    number of workers to start on this node. 0 is valid, and becomes a usage error that names the
    counter. It must not import torch in the launcher.
    """


@hookspec
def plaunch_signal_policies() -> Mapping[str, SignalPolicyFactory]:  # type: ignore[empty-body]
    """Offer signal policies, which decide what signals to the launcher mean.

    Called: when a signal policy is looked up by name.
    Result: factories by name. The selected one is called once with a `PluginContext` and returns a
    `SignalPolicy`.
    """


@hookspec
def plaunch_restart_policies() -> Mapping[str, RestartPolicyFactory]:  # type: ignore[empty-body]
    """Offer restart policies, which decide what follows a failure.

    Called: when a restart policy is looked up by name. The default one is looked up only if one of
    its options is given, or after a failure.
    Result: factories by name. The selected one is called once with a `PluginContext`, whose
    `options` are those that its package declares, and returns a `RestartPolicy`. It raises
    `UsageError` if the options are invalid.
    """


@hookspec
def plaunch_node_health() -> Mapping[str, HealthCheckFactory]:  # type: ignore[empty-body]
    """Offer health checks, which can keep a node out of the job.

    Called: when a health check is looked up by name.
    Result: factories by name. A selected one is called once with a `PluginContext` and returns a
    `HealthCheck`. The text after its name, as `8G` in `memory:8G`, is
    `context.options["argument"]`; it is a usage error unless the factory has a true attribute
    `takes_argument`. The factory raises `UsageError` if the argument is invalid.
    """


@hookspec
def plaunch_schedulers() -> Mapping[str, Scheduler]:  # type: ignore[empty-body]
    """Offer schedulers, which describe the job that a launcher belongs to.

    Called: when a scheduler is looked up by name; not for launches without one.
    Result: functions by name. The selected one is called once with the environment variables of
    the launcher and returns an `Allocation`, which fills in options that the user has not given. It
    raises `UsageError` if a launch is impossible there. It must not query a service: all nodes must
    get the same answers.
    """


@hookspec
def plaunch_engines() -> Mapping[str, EngineFactory]:  # type: ignore[empty-body]
    """Offer engines, which start the agents of a job on its nodes.

    Called: when an engine is looked up by name, in the command `plaunch --on=NAME`, which launches
    no workers itself.
    Result: factories by name. The selected one is called once with a
    `plaunch.engines.EngineRequest` and returns a `plaunch.engines.Engine` or `BatchEngine`. It
    raises `UsageError` if the job is impossible there. It may take a minute, for example to query a
    service.
    """


# --- contribute -----------------------------------------------------------------------------------


@hookspec
def plaunch_worker_env(worker: WorkerInfo, env: Mapping[str, str]) -> Mapping[str, str] | None:
    """Add environment variables to one worker.

    Called: before every start of the workers, once for each worker of this node.
    Parameters: `worker`, whose ranks are known and whose pid is not; `env`, read-only, the
    variables that plaunch itself sets for it.
    Result: more variables, or None. Results are merged in the order of plugin names. It is an error
    to change a variable of plaunch's own, or to give a variable another value than another plugin
    does. The error names the plugins and ends the job before the workers start.
    """


@hookspec
def plaunch_worker_binder(context: PluginContext) -> Binder | None:
    """Provide the binder, which assigns devices and processors to workers.

    Called: once per launch, before its node joins the others. plaunch's own plugin is called only
    if the settings have `devices`, `numa_options` or `virtual_local_rank`, or one of its options is
    given; it then returns a binder.
    Parameters: `context`, the launch, its settings, and the plugin's own options.
    Result: a `Binder`, or None. Two binders are an error that names both plugins. Its methods are
    called for every start of the workers.
    """


@hookspec
def plaunch_worker_store(context: PluginContext) -> OpenStore | None:
    """Provide the function that opens the workers' store, outside of the workers.

    Called: once per launch whose setting `worker_store` is `agent`, before its node joins the
    others. plaunch's own plugin is used if no other one returns a function.
    Parameters: `context`, the launch, its settings, and the plugin's own options.
    Result: a function that opens a `WorkerStore` for a `StoreRound`, or None. It is called on the
    node of rank 0 before the workers of each round start, and has a minute, unless the rendezvous
    itself hosts their store. If no plugin returns one, the worker of rank 0 hosts the store, and
    `TORCHELASTIC_USE_AGENT_STORE` is `False`. Two functions are an error that names both plugins.
    The agent's loop calls the methods of the store, which must return at once.
    """


@hookspec
def plaunch_worker_starter(context: PluginContext) -> Starter | None:
    """Provide the starter, which starts worker processes instead of executing their command.

    Called: once per launch, before its node joins the others.
    Parameters: `context`, the launch, its settings, and the plugin's own options.
    Result: a `Starter`, or None. Two starters are an error that names both plugins. It begins
    before the first round and is called for every worker of every round. If it does not start a
    worker, plaunch executes the command.
    """


@hookspec
def plaunch_doctor_checks(context: DoctorContext) -> Iterable[Finding] | None:
    """Add findings to `plaunch --doctor`.

    Called: once per `--doctor`, at the same time as the other checks, each on its own thread; never
    by a launch. `--doctor` loads the plugins with options for it.
    Parameters: `context`, the settings of the launch, the environment, and a limit in seconds for
    network requests.
    Result: findings from `plaunch.doctor`, or None. An implementation that raises, or has not
    returned within fifteen seconds, is reported as broken with its plugin's name. It must not
    change anything on the node or start workers.
    """


@hookspec
def plaunch_extensions(context: PluginContext) -> Iterable[Extension] | None:
    """Add extensions: objects that run beside the agent of one launch.

    Called: once per launch, before the first round. A plugin with options of its own is called only
    if one of them is given.
    Parameters: `context`, the launch; its `options` are the values of the plugin's own options.
    Result: objects that derive from `plaunch.agent.Extension`, or have its methods `start`,
    `handle` and `stop`; or None.
    """


# --- notify ---------------------------------------------------------------------------------------


@hookspec
def plaunch_before_rendezvous(group: GroupInfo) -> None:
    """Notify that the agent is about to join a round.

    Called: before the first round and before every further one (restart, membership change).
    Parameters: `group`, this agent's worker group; its ranks are those of the last round, or -1
    before the first.
    """


@hookspec
def plaunch_after_rendezvous(group: GroupInfo) -> None:
    """Notify that a round is complete: ranks, world and the workers' store address are known.

    Called: after every round, before its workers start.
    Parameters: `group`, this agent's worker group in that round.
    """


@hookspec
def plaunch_workers_started(group: GroupInfo) -> None:
    """Notify that all workers of this node have been started.

    Called: once per round, after the last worker's process exists.
    Parameters: `group`, with the workers' pids.
    """


@hookspec
def plaunch_before_stop(group: GroupInfo, cause: str) -> None:
    """Notify that the workers of this node are about to be stopped.

    Called: before the first signal of each stop of workers; the other nodes are notified of a
    failure afterwards. Not called if an internal error ends the launch at once.
    Parameters: `group`, with the workers' pids, some of which may have exited; `cause`, a word:
    `failure` (a worker of the job has failed), `membership` (nodes have joined or left), `request`
    (a signal or a request) or `end` (the job is over, or this node can no longer take part).
    """


@hookspec
def plaunch_worker_exited(group: GroupInfo, exit: WorkerExit) -> None:
    """Notify that one worker has exited.

    Called: once for every worker that was started, in the order in which the agent noticed exits;
    after a failure, when the other workers have been stopped and the failure is complete. The event
    `plaunch.worker.exited` does not wait for that.
    Parameters: `group`, this agent's worker group; `exit`, the worker, its exit code (negative for
    a signal), whether the agent stopped it, and its failure if it failed.
    """


@hookspec
def plaunch_state_changed(group: GroupInfo, old: WorkerState, new: WorkerState) -> None:
    """Notify that the worker group's state has changed.

    Called: after every change.
    Parameters: `group`, this agent's worker group; `old` and `new`, which always differ.
    """


@hookspec
def plaunch_agent_finished(group: GroupInfo, result: RunResult | None) -> None:
    """Notify that the agent has finished.

    Called: once per launch, as the last hook, however the job ended.
    Parameters: `group`, in its final state; `result`, or None if a signal or an internal error
    ended the job.
    """
