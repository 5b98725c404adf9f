"""The variables that plugins add to a worker's environment."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from plaunch.errors import PluginError
from plaunch.plugin.calls import one_line
from plaunch.plugin.loading import keeping_signals
from plaunch.threads import BoundedCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pluggy

    from plaunch.agent.worker import WorkerInfo

logger = logging.getLogger("plaunch")

HOOK = "plaunch_worker_env"

TIME_BOUND = 10.0  # seconds that one implementation is waited for


def contributions(
    implementations: Iterable[pluggy.HookImpl],
    who: Callable[[str], str],
    worker: WorkerInfo,
    env: Mapping[str, str],
    is_unwanted: Callable[[], bool] = lambda: False,
) -> dict[str, str]:
    """Merge what the implementations of `plaunch_worker_env` add for one worker.

    A value that a plugin returns unchanged from `env` is no contribution.

    Args:
        implementations: in the order in which they are called, each on a thread of its own.
        who: says how messages call a plugin, by the name under which pluggy knows it.
        worker: the worker.
        env: what plaunch itself sets for it.
        is_unwanted: asked while a plugin takes its time: whether not to wait for it any more.

    Raises:
        PluginError: a plugin fails, does not return, returns something that is no environment,
            changes a variable of plaunch's own, or contradicts another plugin.
    """
    merged: dict[str, str] = {}
    owners: dict[str, str] = {}
    arguments = {"worker": worker, "env": MappingProxyType(dict(env))}
    for implementation in implementations:
        plugin = who(implementation.plugin_name)
        for name, value in _returned(plugin, implementation, arguments, is_unwanted).items():
            if env.get(name) == value:
                continue
            if name in env:
                raise PluginError(
                    f"{plugin} sets {name} to {value!r} in {HOOK}, but plaunch itself sets "
                    f"it to {env[name]!r}; a plugin may only add variables"
                )
            if merged.setdefault(name, value) != value:
                raise PluginError(
                    f"{owners[name]} and {plugin} set {name} to different values in "
                    f"{HOOK}: {merged[name]!r} and {value!r}; block one of them with -p no:NAME"
                )
            owners.setdefault(name, plugin)
    return merged


def _returned(
    plugin: str,
    implementation: pluggy.HookImpl,
    arguments: Mapping[str, object],
    is_unwanted: Callable[[], bool],
) -> Mapping[str, str]:
    result = answer_of(plugin, HOOK, implementation, arguments, is_unwanted)
    if result is None:
        return {}
    if not isinstance(result, Mapping):
        raise PluginError(
            f"{plugin} returned {result!r} from {HOOK}, which is neither a mapping nor None"
        )
    for name, value in result.items():
        if not _is_variable(name, value):
            raise PluginError(
                f"{plugin} returned {name!r}: {value!r} from {HOOK}, which is no "
                "environment variable; both must be strings, the name without '='"
            )
    return result


def answer_of(
    plugin: str,
    hook: str,
    implementation: pluggy.HookImpl,
    arguments: Mapping[str, object],
    is_unwanted: Callable[[], bool],
) -> object:
    """What an implementation of a hook returns, which runs on a thread that is left behind in time.

    Raises:
        PluginError: it fails, or does not return.
    """
    wanted = [arguments[name] for name in implementation.argnames]
    with keeping_signals(plugin, hook):
        call = BoundedCall(f"hook-{hook}", lambda: implementation.function(*wanted))
        has_returned = call.wait(TIME_BOUND, is_unwanted)
    if not has_returned:
        if is_unwanted():
            # Nobody looks at why the workers did not start: they are not to start.
            text = f"{plugin} had not returned from {hook} when the launch was to stop"
            logger.warning("%s", text)
            raise PluginError(text)
        raise PluginError(
            f"{plugin} has not returned from {hook} within {TIME_BOUND:g} s; mend what it waits "
            "for, or block it with -p no:NAME"
        )
    if call.error is not None:
        raise PluginError(f"{plugin} failed in {hook}: {one_line(call.error)}") from call.error
    return call.result


def _is_variable(name: object, value: object) -> bool:
    return (
        isinstance(name, str)
        and isinstance(value, str)
        and bool(name)
        and "=" not in name
        and "\0" not in name + value
    )
