"""What plugins contribute to the workers: variables, devices and processors, a store."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from plaunch.errors import PluginError, UsageError
from plaunch.plugin.calls import call_hook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from plaunch.agent.worker import WorkerInfo
    from plaunch.plugin.calls import Implementation
    from plaunch.plugin.context import PluginContext
    from plaunch.plugin.loaded import Registration

ENVIRONMENT = "plaunch_worker_env"


class SoleHook(NamedTuple):
    """A hook that one plugin of a launch may answer.

    Args:
        name: of the hook.
        methods: what an answer must have; those of a third party's are bounded.
        answer: what that is called.
        deed: what two plugins that answer would both do.
    """

    name: str
    methods: tuple[str, ...]
    answer: str
    deed: str


BINDER = SoleHook("plaunch_worker_binder", ("plan", "environment"), "Binder", "bind the workers")
STORE = SoleHook(
    "plaunch_worker_store",
    ("__call__",),
    "function that opens a store",
    "host the workers' store",
)
STARTER = SoleHook(
    "plaunch_worker_starter",
    ("begin", "wait", "prepare", "start", "fds", "close"),
    "Starter",
    "start the workers",
)


def added_variables(
    implementations: Iterable[Implementation],
    worker: WorkerInfo,
    env: Mapping[str, str],
    is_unwanted: Callable[[], bool],
) -> dict[str, str]:
    """Merge what the implementations of `plaunch_worker_env` add for one worker.

    A value that a plugin returns unchanged from `env` is no contribution.

    Args:
        implementations: in the order in which they are called, each on a thread of its own.
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
    for item in implementations:
        for name, value in _variables(item, call_hook(item, arguments, is_unwanted)):
            if env.get(name) == value:
                continue
            if name in env:
                raise PluginError(
                    f"{item.who} sets {name} to {value!r} in {ENVIRONMENT}, but plaunch itself "
                    f"sets it to {env[name]!r}; a plugin may only add variables"
                )
            if merged.setdefault(name, value) != value:
                raise PluginError(
                    f"{owners[name]} and {item.who} set {name} to different values in "
                    f"{ENVIRONMENT}: {merged[name]!r} and {value!r}; block one of them with "
                    "-p no:NAME"
                )
            owners.setdefault(name, item.who)
    return merged


def find_sole_answer(
    hook: SoleHook,
    implementations: Callable[[str], Iterable[Implementation]],
    context: PluginContext,
    is_unwanted: Callable[[], bool],
) -> Any:
    """The one answer to a hook, bounded if it is a third party's; None if there is none.

    Args:
        hook: the hook.
        implementations: those of a hook, in the order in which they are called, each on a thread
            of its own.
        context: the launch.
        is_unwanted: asked while a plugin takes its time: whether not to wait for it any more.

    Raises:
        UsageError: a plugin refuses the settings.
        PluginError: a plugin fails, does not return, returns something else, or is the second one.
    """
    found: Any = None
    by: Registration | None = None
    for item in implementations(hook.name):
        arguments = {"context": item.plugin.context(context)}
        answer = call_hook(item, arguments, is_unwanted, passing=(UsageError,))
        if answer is None:
            continue
        if not all(callable(getattr(answer, name, None)) for name in hook.methods):
            raise PluginError(
                f"{item.who} returned {answer!r} from {hook.name}, which is not a {hook.answer}"
            )
        if by is not None:
            raise PluginError(
                f"{by.who} and {item.who} both {hook.deed} ({hook.name}); block one of them with "
                "-p no:NAME"
            )
        found, by = answer, item.plugin
    if by is None or by.is_ours:
        return found
    from plaunch.plugin.components import Bounded, bounded_method  # noqa: PLC0415 - theirs only

    if hook is STORE:
        return bounded_method(by.who, "opening a store", found, is_unwanted)
    return Bounded(found, by.who, is_unwanted, hook.methods)


def _variables(item: Implementation, answer: object) -> Iterable[tuple[str, str]]:
    if answer is None:
        return ()
    if not isinstance(answer, Mapping):
        raise PluginError(
            f"{item.who} returned {answer!r} from {ENVIRONMENT}, which is neither a mapping nor "
            "None"
        )
    for name, value in answer.items():
        if not _is_variable(name, value):
            raise PluginError(
                f"{item.who} returned {name!r}: {value!r} from {ENVIRONMENT}, which is not an "
                "environment variable; both must be strings, the name without '='"
            )
    return answer.items()


def _is_variable(name: object, value: object) -> bool:
    return (
        isinstance(name, str)
        and isinstance(value, str)
        and bool(name)
        and "=" not in name
        and "\0" not in name + value
    )
