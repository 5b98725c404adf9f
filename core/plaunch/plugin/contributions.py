"""Finds what plugins contribute to a launch: its binder, store and starter, variables of workers.

Also calls the notification hooks. Each component is created once, before the node joins the others.
The agent calls some of them through the classes here, which limit the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from plaunch.agent import notifications
from plaunch.agent.worker_store import open_default_store
from plaunch.errors import PluginError, UsageError
from plaunch.parts import OPEN_WORKER_STORE, package_of
from plaunch.plugin.kinds import WITH_OPTIONS
from plaunch.process.components import is_asked_for
from plaunch.process.logs import LogsSpecs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from plaunch.agent.notifications import Notification
    from plaunch.agent.worker_store import OpenStore
    from plaunch.plugin.context import PluginContext
    from plaunch.plugin.guard import CallGuard
    from plaunch.plugin.hooks import HookResult
    from plaunch.plugin.manager import PluginManager
    from plaunch.plugin.options import PluginOptions
    from plaunch.process.components import Binder, Binding, Starter, WorkerInfo
    from plaunch.process.logs import LogsDest
    from plaunch.process.streams import Streams

# The hook of each notification; the hook's arguments are fields of the notification.
HOOK_OF: dict[type[Notification], str] = {
    notifications.BeforeRendezvous: "plaunch_before_rendezvous",
    notifications.AfterRendezvous: "plaunch_after_rendezvous",
    notifications.WorkersStarted: "plaunch_workers_started",
    notifications.BeforeStop: "plaunch_before_stop",
    notifications.WorkerExited: "plaunch_worker_exited",
    notifications.StateChanged: "plaunch_state_changed",
    notifications.AgentFinished: "plaunch_agent_finished",
}
_ENVIRONMENT = "plaunch_worker_env"


def notify(manager: PluginManager, notification: Notification) -> None:
    """Call the hook of a notification, if it has one; never raises what a plugin raises."""
    hook = HOOK_OF.get(type(notification))
    if hook is not None:
        getattr(manager.hook, hook)(**vars(notification))


class LaunchBinder:
    """Calls the binder of one launch with a time limit; see `Binder`.

    Args:
        binder: the binder.
        guard: limits the calls.
        who: its plugin, for messages.
    """

    def __init__(self, binder: Binder, guard: CallGuard, who: str) -> None:
        self._plan = guard.limited(who, "plan", binder.plan)
        self._environment = guard.limited(who, "environment", binder.environment)

    def plan(self, nprocs: int) -> Mapping[int, Binding]:
        """Return the bindings by local rank."""
        bindings: Mapping[int, Binding] = self._plan(nprocs)
        return bindings

    def environment(self, local_rank: int, environ: Mapping[str, str]) -> Mapping[str, str]:
        """Return the variables that show a worker its devices."""
        variables: Mapping[str, str] = self._environment(local_rank, environ)
        return variables


class LaunchLogsSpecs(LogsSpecs):
    """Calls the logs spec of one launch with a time limit.

    Args:
        specs: the logs spec.
        guard: limits the calls.
        who: its plugin, for messages.
    """

    def __init__(self, specs: LogsSpecs, guard: CallGuard, who: str) -> None:
        super().__init__()
        self._specs = specs
        self._guard = guard
        self._who = who
        self._reify = self._limit("reify", specs.reify)
        self._open_streams = self._limit("open_streams", specs.open_streams)

    def _limit(self, doing: str, function: Callable[..., object]) -> Callable[..., Any]:
        return self._guard.limited(self._who, doing, function)

    @property
    def root_log_dir(self) -> str | None:
        """The directory of all files; None if there are no files."""
        return self._specs.root_log_dir

    @property
    def temporary_dir(self) -> str | None:
        """The folder that `close` removes, if any."""
        return self._specs.temporary_dir

    def create_run_dir(self, run_id: str) -> str | None:
        """Create the folder of this launch, and return it."""
        folder: str | None = self._limit("create_run_dir", self._specs.create_run_dir)(run_id)
        return folder

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Create the folders of one start, and return where each stream goes."""
        dest: LogsDest = self._reify(envs)
        return dest

    def open_streams(self, dest: LogsDest, nprocs: int, **options: Any) -> Streams:
        """Open the streams that carry the workers' output to `dest`."""
        options.setdefault("open_sink", self._limit("open_sink", self._specs.open_sink))
        streams: Streams = self._open_streams(dest, nprocs, **options)
        return streams


def find_declaring(manager: PluginManager, name: str) -> PluginOptions | None:
    """Return the plugin whose options declare `name`, such as `EVENT_READERS`, or None."""
    return next((plugin for plugin in manager.plugin_options() if plugin.declared(name)), None)


def find_binder(manager: PluginManager, context: PluginContext) -> Binder | None:
    """Return what assigns devices and processors to workers, or None.

    Raises:
        UsageError: a setting is invalid, or no plugin can do what the settings ask for.
        PluginError: a plugin fails, times out, or is not the only one that contributes a binder.
    """
    names = ("numa_options", "devices", "virtual_local_rank")
    manager.use_settings({name: context.settings.get(name) for name in names})
    found = _find_sole(
        manager.hook.plaunch_worker_binder(context=context),
        "plaunch_worker_binder",
        "a Binder",
        ("plan", "environment"),
        does="bind the workers",
    )
    if found is None:
        if is_asked_for(*map(context.settings.get, names)):
            raise UsageError(
                "devices, numa_options or virtual_local_rank is set, but no plugin assigns devices "
                "to workers; do not block 'devices'"
            )
        return None
    return LaunchBinder(found.value, manager.guard, found.who)


def find_worker_store(manager: PluginManager, context: PluginContext) -> OpenStore | None:
    """Return the function that opens the workers' store; None if the worker of rank 0 hosts it.

    plaunch's own plugin is not loaded for this: only the node of rank 0 imports it.

    Raises:
        PluginError: a plugin fails, times out, or is not the only one that contributes a store.
    """
    if context.settings.get("worker_store", "agent") != "agent":
        return None
    found = _find_sole(
        manager.hook.plaunch_worker_store(context=context),
        "plaunch_worker_store",
        "a function that opens a store",
        ("__call__",),
        does="host the workers' store",
    )
    if found is not None:
        return manager.guard.limited(found.who, "opening the workers' store", found.value)
    # Unless it is blocked, or has been loaded for its options and has not offered its store.
    own = {plugin.name for plugin in manager.plugin_options(package_of(OPEN_WORKER_STORE))}
    asked = {one.name for one in manager.selected() if one.kind == WITH_OPTIONS.name}
    return open_default_store if own and own.isdisjoint(asked) else None


def find_starter(manager: PluginManager, context: PluginContext) -> Starter | None:
    """Return what starts the workers' processes; None if plaunch executes the command itself.

    Raises:
        UsageError: a plugin rejects the settings.
        PluginError: a plugin fails, times out, or is not the only one that contributes a starter.
    """
    found = _find_sole(
        manager.hook.plaunch_worker_starter(context=context),
        "plaunch_worker_starter",
        "a Starter",
        ("begin", "wait", "prepare", "start", "start_helper", "fds", "close"),
        does="start the workers",
    )
    starter: Starter | None = None if found is None else found.value
    return starter


def _find_sole(
    results: list[HookResult], hook: str, what: str, methods: Iterable[str], *, does: str
) -> HookResult | None:
    """Return the one result of a hook that one plugin may implement; None if there is none."""
    for result in results:
        if not all(callable(getattr(result.value, name, None)) for name in methods):
            raise PluginError(
                f"{result.who} returned {result.value!r} from {hook}, which is not {what}"
            )
    if len(results) > 1:
        raise PluginError(
            f"{results[0].who} and {results[1].who} both {does} ({hook}); block one of them with "
            f"{_blocking(results)}"
        )
    return results[0] if results else None


def _blocking(results: Iterable[HookResult]) -> str:
    """Return the options that block the plugins of these results."""
    return " or ".join(f"-p no:{result.plugin.name}" for result in results)


def find_worker_env(
    manager: PluginManager, worker: WorkerInfo, env: Mapping[str, str]
) -> dict[str, str]:
    """Merge the variables that plugins add for one worker with `plaunch_worker_env`.

    A value that a plugin returns unchanged from `env` is not a contribution.

    Args:
        manager: the plugins.
        worker: the worker.
        env: the variables that plaunch itself sets for it.

    Raises:
        PluginError: a plugin fails, times out, returns something that is not an environment,
            changes a variable of plaunch's own, or contradicts another plugin.
    """
    merged: dict[str, str] = {}
    owners: dict[str, HookResult] = {}
    read_only = MappingProxyType(dict(env))
    results: list[HookResult] = manager.hook.plaunch_worker_env(worker=worker, env=read_only)
    for result in results:
        for name, value in _variables(result):
            if env.get(name) == value:
                continue
            if name in env:
                raise PluginError(
                    f"{result.who} sets {name} to {value!r} in {_ENVIRONMENT}, but plaunch itself "
                    f"sets it to {env[name]!r}; a plugin may only add variables"
                )
            if merged.setdefault(name, value) != value:
                raise PluginError(
                    f"{owners[name].who} and {result.who} set {name} to different values in "
                    f"{_ENVIRONMENT}: {merged[name]!r} and {value!r}; block one of them with "
                    f"{_blocking((owners[name], result))}"
                )
            owners.setdefault(name, result)
    return merged


def _variables(result: HookResult) -> Iterable[tuple[str, str]]:
    if not isinstance(result.value, Mapping):
        raise PluginError(
            f"{result.who} returned {result.value!r} from {_ENVIRONMENT}, which is neither a "
            "mapping nor None"
        )
    for name, value in result.value.items():
        if not _is_variable(name, value):
            raise PluginError(
                f"{result.who} returned {name!r}: {value!r} from {_ENVIRONMENT}, which is not an "
                "environment variable; both must be strings, the name without '='"
            )
    return result.value.items()


def _is_variable(name: object, value: object) -> bool:
    return (
        isinstance(name, str)
        and isinstance(value, str)
        and bool(name)
        and "=" not in name
        and "\0" not in name + value
    )
