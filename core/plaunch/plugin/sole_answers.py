"""Hooks that one plugin of a launch may answer: what binds its workers, what hosts their store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from plaunch.errors import PluginError, UsageError
from plaunch.plugin.environment import answer_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pluggy

    from plaunch.plugin.context import PluginContext


class SoleHook(NamedTuple):
    """A hook that one plugin may answer.

    Args:
        name: of the hook.
        is_right: whether an answer is what it should be.
        answer: what that is called.
        deed: what two plugins that answer would both do.
    """

    name: str
    is_right: Callable[[object], bool]
    answer: str
    deed: str


BINDER = SoleHook(
    "plaunch_worker_binder",
    lambda answer: all(callable(getattr(answer, name, None)) for name in ("plan", "environment")),
    "Binder",
    "bind the workers",
)
STORE = SoleHook(
    "plaunch_worker_store", callable, "function that opens a store", "host the workers' store"
)


def find_sole_answer(
    hook: SoleHook,
    implementations: Iterable[pluggy.HookImpl],
    who: Callable[[str], str],
    context_of: Callable[[str], PluginContext],
    is_unwanted: Callable[[], bool],
) -> tuple[Any, str]:
    """The one answer to a hook, and pluggy's name of the plugin that gave it; else None and "".

    Args:
        hook: the hook.
        implementations: in the order in which they are called, each on a thread of its own.
        who: says how messages call a plugin, by the name under which pluggy knows it.
        context_of: the launch as a plugin of that name is told of it.
        is_unwanted: asked while a plugin takes its time: whether not to wait for it any more.

    Raises:
        UsageError: a plugin refuses the settings.
        PluginError: a plugin fails, does not return, returns something else, or is the second one.
    """
    found, by = None, ""
    for implementation in implementations:
        plugin = implementation.plugin_name
        try:
            own = {"context": context_of(plugin)}
            answer = answer_of(who(plugin), hook.name, implementation, own, is_unwanted)
        except PluginError as error:
            if isinstance(error.__cause__, UsageError):
                raise error.__cause__ from None
            raise
        if answer is None:
            continue
        if not hook.is_right(answer):
            raise PluginError(
                f"{who(plugin)} returned {answer!r} from {hook.name}, which is no {hook.answer}"
            )
        if by:
            raise PluginError(
                f"{who(by)} and {who(plugin)} both {hook.deed} ({hook.name}); block one of them "
                "with -p no:NAME"
            )
        found, by = answer, plugin
    return found, by
