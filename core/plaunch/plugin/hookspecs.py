"""The hooks of plaunch.

There are three sorts: *offer* hooks give named components, *contribution* hooks add to what workers
get and to what the doctor finds, and *notification* hooks are called when something happens. All
run in the launcher's process; none runs in a worker. They run one after the other on a thread that
is not the main one, and that may be another one each time. An implementation may leave out
arguments that it does not need. Each implementation is guarded on its own, and a hook wrapper would
run outside of the guard: wrappers are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import TypeVar

    from plaunch.agent.extensions import Extension
    from plaunch.agent.worker import GroupInfo, RunResult, WorkerExit, WorkerInfo, WorkerState
    from plaunch.agent.worker_store import OpenStore
    from plaunch.doctor import DoctorContext, Finding
    from plaunch.plugin.context import PluginContext
    from plaunch.plugin.factories import (
        DeviceCounter,
        EventHandlerFactory,
        HealthCheckFactory,
        LogsSpecsFactory,
        RendezvousFactory,
        RestartPolicyFactory,
        Scheduler,
        SignalPolicyFactory,
    )
    from plaunch.process import Binder, Starter

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

    Called: once per launch, when a backend is looked up by name; never for `--help`.
    Parameters: none.
    Result: factories by name; the chosen one is called once with `RendezvousParameters` and returns
    a `RendezvousHandler`. Import heavy packages inside the factory, not before.
    Process: the launcher, on a thread that is not the main one. An implementation that raises, or
    has not returned within ten seconds, ends the launch.
    """


@hookspec
def plaunch_logs_specs() -> Mapping[str, LogsSpecsFactory]:  # type: ignore[empty-body]
    """Offer logs specs.

    Called: once per launch, when a logs spec is looked up by name.
    Parameters: none.
    Result: `LogsSpecs` classes by name; the chosen one is constructed once with torchrun's four
    keyword arguments `log_dir`, `redirects`, `tee` and `local_ranks_filter`.
    Process: the launcher, on a thread that is not the main one. An implementation that raises, or
    has not returned within ten seconds, ends the launch.
    """


@hookspec
def plaunch_event_handlers() -> Mapping[str, EventHandlerFactory]:  # type: ignore[empty-body]
    """Offer event handlers.

    Called: once per launch, when an event handler is looked up by name.
    Parameters: none.
    Result: factories by name; the chosen one is called once with a `PluginContext` and returns an
    `EventHandler`.
    Process: the launcher, on a thread that is not the main one. An implementation that raises, or
    has not returned within ten seconds, ends the launch.
    """


@hookspec
def plaunch_device_counts() -> Mapping[str, DeviceCounter]:  # type: ignore[empty-body]
    """Offer device counters, the words that `--nproc-per-node` takes instead of a number.

    Called: once per launch, when `--nproc-per-node` is a word.
    Parameters: none.
    Result: functions by name; the chosen one is called once, without arguments, and returns the
    number of workers to start on this node. 0 is a valid answer and becomes a usage error that
    names the counter. It must not import torch in the launcher.
    Process: the launcher, on a thread that is not the main one. An implementation that raises, or
    has not returned within ten seconds, ends the launch.
    """


@hookspec
def plaunch_signal_policies() -> Mapping[str, SignalPolicyFactory]:  # type: ignore[empty-body]
    """Offer signal policies.

    Called: once per launch, when a signal policy is looked up by name.
    Parameters: none.
    Result: factories by name; the chosen one is called once with a `PluginContext` and returns a
    `SignalPolicy`.
    Process: the launcher, on a thread that is not the main one. An implementation that raises, or
    has not returned within ten seconds, ends the launch.
    """


@hookspec
def plaunch_restart_policies() -> Mapping[str, RestartPolicyFactory]:  # type: ignore[empty-body]
    """Offer restart policies, which decide what follows a failure.

    Called: once per launch, when a restart policy is looked up by name; for the default one, only
    if an option of it is given, or once something has failed.
    Parameters: none.
    Result: factories by name; the chosen one is called once with a `PluginContext`, whose `options`
    are those that its package declares, and returns a `RestartPolicy`. It raises `UsageError` for
    options that cannot be meant.
    Process: the launcher, on a thread that is not the main one. An implementation that raises, or
    has not returned within ten seconds, ends the launch.
    """


@hookspec
def plaunch_node_health() -> Mapping[str, HealthCheckFactory]:  # type: ignore[empty-body]
    """Offer health checks, which can keep a node out of the job.

    Called: once per launch, when a health check is looked up by name.
    Parameters: none.
    Result: factories by name; a chosen one is called once with a `PluginContext` and returns a
    `HealthCheck`. What the user writes behind the name, as `8G` in `memory:8G`, is
    `context.options["argument"]`; it is refused unless the factory has an attribute
    `takes_argument` that is true. The factory raises `UsageError` for what cannot be meant.
    Process: the launcher, on a thread that is not the main one. An implementation that raises, or
    has not returned within ten seconds, ends the launch.
    """


@hookspec
def plaunch_schedulers() -> Mapping[str, Scheduler]:  # type: ignore[empty-body]
    """Offer schedulers, which tell what a launcher of theirs is part of.

    Called: once per launch, when a scheduler is looked up by name; not if there is none.
    Parameters: none.
    Result: functions by name; the chosen one is called once with the environment variables of the
    launcher and returns an `Allocation`, which fills in options that the user has not given. It
    raises `UsageError` where a launch cannot be meant, and asks no service: all nodes must get the
    same answers.
    Process: the launcher, on a thread that is not the main one. An implementation that raises, or
    has not returned within ten seconds, ends the launch.
    """


# --- contribute -----------------------------------------------------------------------------------


@hookspec
def plaunch_worker_env(worker: WorkerInfo, env: Mapping[str, str]) -> Mapping[str, str] | None:
    """Contribute environment variables to one worker.

    Called: before every start of the workers, once for each worker of this node.
    Parameters: `worker`, whose ranks are known and whose pid is not; `env`, read-only, the
    variables that plaunch itself sets for it.
    Result: more variables, or None. Results are merged in the order of plugin names. A plugin that
    changes a variable of plaunch's own, or gives one another value than a second plugin does, is an
    error that names the plugins and ends the job before the workers start. So is one that has not
    returned within ten seconds.
    Process: the launcher, on a thread that is not the main one.
    """


@hookspec
def plaunch_worker_binder(context: PluginContext) -> Binder | None:
    """Contribute what gives workers their devices and processors.

    Called: once per launch, before its node joins the others, and by `--dry-run`. plaunch's own
    plugin is asked as well if the settings have `devices`, `numa_options` or
    `virtual_local_rank`, or one of its options is given, and answers then.
    Parameters: `context`, the launch, its settings, and the plugin's own options.
    Result: a `Binder`, or None if this plugin has nothing to bind. Two answers are an error that
    names both plugins, and so is one that has not come within ten seconds. Its methods are called
    for every start of the workers.
    Process: the launcher, on a thread that is not the main one.
    """


@hookspec
def plaunch_worker_store(context: PluginContext) -> OpenStore | None:
    """Contribute what hosts the store in which the workers meet, outside of them.

    Called: once per launch whose setting `worker_store` is `agent`, before its node joins the
    others, and by `--dry-run`. plaunch's own plugin is asked if no other one answers.
    Parameters: `context`, the launch, its settings, and the plugin's own options.
    Result: a function that opens a `WorkerStore` for a `StoreRound`, or None if this plugin hosts
    none. It is called on the node of rank 0 before the workers of each round are started,
    without a time limit, unless the rendezvous itself hosts their store. If no plugin answers,
    the worker of rank 0 hosts it, and `TORCHELASTIC_USE_AGENT_STORE` is `False`. Two answers are
    an error that names both plugins, and so is one that has not come within ten seconds.
    Process: the launcher, on a thread that is not the main one. The agent's loop calls the methods
    of the store, which must not take any time.
    """


@hookspec
def plaunch_worker_starter(context: PluginContext) -> Starter | None:
    """Contribute what starts the processes of workers, instead of executing them.

    Called: once per launch, before its node joins the others, and by `--dry-run`.
    Parameters: `context`, the launch, its settings, and the plugin's own options.
    Result: a `Starter`, or None. Two answers are an error that names both plugins, and so is one
    that has not come within ten seconds. It is begun before the first round, and asked for every
    worker of every round; for a worker that it does not start, plaunch executes the command.
    Process: the launcher, on a thread that is not the main one.
    """


@hookspec
def plaunch_doctor_checks(context: DoctorContext) -> Iterable[Finding] | None:
    """Contribute findings to `plaunch --doctor`.

    Called: once per `--doctor`, at the same time as the other checks and on a thread of its own;
    never by a launch. Plugins with options are loaded for it.
    Parameters: `context`, the settings of the launch, the environment, and a bound in seconds for
    questions to the network.
    Result: findings from `plaunch.doctor`, or None. An implementation that raises, or is not done
    within fifteen seconds, is reported as broken with its plugin's name. It must not change
    anything on the node or start workers.
    Process: the launcher.
    """


@hookspec
def plaunch_extensions(context: PluginContext) -> Iterable[Extension] | None:
    """Contribute extensions: objects that run beside the agent of one launch.

    Called: once per launch, before the first round; for a plugin with options of its own only if
    one of these is given.
    Parameters: `context`, the launch; its `options` are the values of the plugin's own options.
    Result: objects with `start(control)`, `handle(event)` and `stop(result)`, or None; see
    `plaunch.agent.Extension`. An implementation that raises, or has not returned within ten
    seconds, ends the launch before workers start.
    Process: the launcher, on a thread that is not the main one.
    """


# --- tell -----------------------------------------------------------------------------------------


@hookspec
def plaunch_before_rendezvous(group: GroupInfo) -> None:
    """Tell that the agent is about to join a round.

    Called: before the first round and before every further one (restart, membership change).
    Parameters: `group`, this agent's worker group; its ranks are those of the last round, -1 before
    the first.
    Result: ignored.
    Process: the launcher, on a thread that is not the main one, while the agent's loop waits for at
    most one second; an implementation that raises, or has not returned by then, is reported by name
    and switched off.
    """


@hookspec
def plaunch_after_rendezvous(group: GroupInfo) -> None:
    """Tell that a round is complete: ranks, world and address of the workers' store are known.

    Called: after every round, before its workers start.
    Parameters: `group`, this agent's worker group in that round.
    Result: ignored.
    Process: the launcher, on a thread that is not the main one, while the agent's loop waits for at
    most one second; an implementation that raises, or has not returned by then, is reported by name
    and switched off.
    """


@hookspec
def plaunch_workers_started(group: GroupInfo) -> None:
    """Tell that all workers of this node have been started.

    Called: once per round, after the last worker's process exists.
    Parameters: `group`, with the workers' pids.
    Result: ignored.
    Process: the launcher, on a thread that is not the main one, while the agent's loop waits for at
    most one second; an implementation that raises, or has not returned by then, is reported by name
    and switched off.
    """


@hookspec
def plaunch_before_stop(group: GroupInfo, cause: str) -> None:
    """Tell that the workers of this node are about to be stopped; those that live still work.

    Called: before the first signal of each stop of workers; the other nodes are told of a failure
    afterwards. Not if an error of plaunch's own ends the launch at once.
    Parameters: `group`, with the workers' pids, some of whom may have ended; `cause`, a word:
    `failure` (a worker of the job has failed), `membership` (nodes have come or gone), `request`
    (a signal or a request) or `end` (the job is over, or this node can no longer take part).
    Result: ignored.
    Process: the launcher, on a thread that is not the main one, while the agent's loop waits for at
    most one second; an implementation that raises, or has not returned by then, is reported by name
    and switched off.
    """


@hookspec
def plaunch_worker_exited(group: GroupInfo, exit: WorkerExit) -> None:
    """Tell that one worker has ended.

    Called: once for every worker that was started, in the order in which the exits were seen.
    Parameters: `group`, this agent's worker group; `exit`, the worker, its exit code (negative for
    a signal), whether the agent stopped it, and its failure if it is one.
    Result: ignored.
    Process: the launcher, on a thread that is not the main one, while the agent's loop waits for at
    most one second; an implementation that raises, or has not returned by then, is reported by name
    and switched off.
    """


@hookspec
def plaunch_state_changed(group: GroupInfo, old: WorkerState, new: WorkerState) -> None:
    """Tell that the worker group's state has changed.

    Called: at every change, after it.
    Parameters: `group`, this agent's worker group; `old` and `new`, which always differ.
    Result: ignored.
    Process: the launcher, on a thread that is not the main one, while the agent's loop waits for at
    most one second; an implementation that raises, or has not returned by then, is reported by name
    and switched off.
    """


@hookspec
def plaunch_agent_finished(group: GroupInfo, result: RunResult | None) -> None:
    """Tell that the agent is done.

    Called: once per launch, last of all, however the job ended.
    Parameters: `group`, in its final state; `result`, or None when a signal or an error of
    plaunch's own ended the job.
    Result: ignored.
    Process: the launcher, on a thread that is not the main one; an implementation that raises, or
    has not returned within one second, is reported by name.
    """
