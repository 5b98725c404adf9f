"""Which plugin gives the workers of a launch their devices and processors."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from plaunch.errors import PluginError, UsageError
from plaunch.plugin.contributions import answer_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pluggy

    from plaunch.plugin.context import PluginContext
    from plaunch.process.binding import Binder

HOOK = "plaunch_worker_binder"


class Found(NamedTuple):
    """A binder, and the name under which pluggy knows the plugin that answered with it."""

    binder: Binder
    plugin: str


def find_binder(
    implementations: Iterable[pluggy.HookImpl],
    who: Callable[[str], str],
    context_of: Callable[[str], PluginContext],
    is_unwanted: Callable[[], bool],
) -> Found | None:
    """The one answer to `plaunch_worker_binder`; None if there is none.

    Args:
        implementations: in the order in which they are called, each on a thread of its own.
        who: says how messages call a plugin, by the name under which pluggy knows it.
        context_of: the launch as a plugin of that name is told of it.
        is_unwanted: asked while a plugin takes its time: whether not to wait for it any more.

    Raises:
        UsageError: a plugin refuses the settings.
        PluginError: a plugin fails, does not return, returns something else, or is the second one.
    """
    found: Found | None = None
    for implementation in implementations:
        plugin = implementation.plugin_name
        try:
            own = {"context": context_of(plugin)}
            answer = answer_of(who(plugin), HOOK, implementation, own, is_unwanted)
        except PluginError as error:
            if isinstance(error.__cause__, UsageError):
                raise error.__cause__ from None
            raise
        if answer is None:
            continue
        if not all(callable(getattr(answer, name, None)) for name in ("plan", "environment")):
            raise PluginError(f"{who(plugin)} returned {answer!r} from {HOOK}, which is no Binder")
        if found is not None:
            raise PluginError(
                f"{who(found.plugin)} and {who(plugin)} both bind the workers ({HOOK}); block one "
                "of them with -p no:NAME"
            )
        found = Found(cast("Binder", answer), plugin)
    return found
