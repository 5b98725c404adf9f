"""The variables that plugins add to a worker's environment."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from plaunch.errors import PluginError, SignalException
from plaunch.plugin.loading import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pluggy

    from plaunch.agent.worker import WorkerInfo

HOOK = "plaunch_worker_env"


def contributions(
    implementations: Iterable[pluggy.HookImpl], worker: WorkerInfo, env: Mapping[str, str]
) -> dict[str, str]:
    """Merge what the implementations of `plaunch_worker_env` add for one worker.

    A value that a plugin returns unchanged from `env` is no contribution.

    Raises:
        PluginError: a plugin fails, returns something that is no environment, changes a variable
            of plaunch's own, or contradicts another plugin.
    """
    merged: dict[str, str] = {}
    owners: dict[str, str] = {}
    arguments = {"worker": worker, "env": MappingProxyType(dict(env))}
    for implementation in implementations:
        plugin = implementation.plugin_name
        for name, value in _returned(implementation, arguments).items():
            if env.get(name) == value:
                continue
            if name in env:
                raise PluginError(
                    f"plugin {plugin} sets {name} to {value!r} in {HOOK}, but plaunch itself sets "
                    f"it to {env[name]!r}; a plugin may only add variables"
                )
            if merged.setdefault(name, value) != value:
                raise PluginError(
                    f"plugins {owners[name]} and {plugin} set {name} to different values in "
                    f"{HOOK}: {merged[name]!r} and {value!r}; block one of them with -p no:NAME"
                )
            owners.setdefault(name, plugin)
    return merged


def _returned(
    implementation: pluggy.HookImpl, arguments: Mapping[str, object]
) -> Mapping[str, str]:
    plugin = implementation.plugin_name
    try:
        result = implementation.function(*(arguments[name] for name in implementation.argnames))
    except (KeyboardInterrupt, SignalException):
        raise
    except BaseException as error:
        raise PluginError(f"plugin {plugin} failed in {HOOK}: {one_line(error)}") from error
    if result is None:
        return {}
    if not isinstance(result, Mapping):
        raise PluginError(
            f"plugin {plugin} returned {result!r} from {HOOK}, which is neither a mapping nor None"
        )
    for name, value in result.items():
        if not _is_variable(name, value):
            raise PluginError(
                f"plugin {plugin} returned {name!r}: {value!r} from {HOOK}, which is no "
                "environment variable; both must be strings, the name without '='"
            )
    return result


def _is_variable(name: object, value: object) -> bool:
    return (
        isinstance(name, str)
        and isinstance(value, str)
        and bool(name)
        and "=" not in name
        and "\0" not in name + value
    )
