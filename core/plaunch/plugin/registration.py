"""A plugin of a launch once it is registered, and what it takes to be."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pluggy

from plaunch._names import suggest
from plaunch.errors import PluginError, PluginLoadError, SignalException
from plaunch.plugin import hookspecs
from plaunch.plugin.calls import one_line
from plaunch.plugin.groups import FIRST_PARTY
from plaunch.plugin.loading import function_at, keeping_signals, origin_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from plaunch.doctor import DoctorContext, Finding
    from plaunch.plugin.entry_points import Distribution
    from plaunch.plugin.registry import Kind

_HOOKS = tuple(name for name in vars(hookspecs) if name.startswith("plaunch_"))
_NOT_PLAIN: tuple[Callable[[object], bool], ...] = (
    inspect.iscoroutinefunction,
    inspect.isgeneratorfunction,
    inspect.isasyncgenfunction,
)


class PluggyManager(pluggy.PluginManager):
    """pluggy's manager, older versions of which run the properties of plugins."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        """What marks a function of a plugin as a hook; None if it is none."""
        return (
            None if function_at(plugin, name) is None else super().parse_hookimpl_opts(plugin, name)
        )


class Registration:
    """A plugin that is registered with pluggy; without a distribution it was not installed."""

    def __init__(
        self, name: str, plugin: object, who: str, module: str, distribution: Distribution | None
    ) -> None:
        self.name = name
        self.plugin = plugin
        self.who = who
        self.distribution = distribution
        self._module = module
        self.offers: dict[str, dict[str, object]] = {}  # what it offers, by kind, once asked

    @property
    def is_ours(self) -> bool:
        """Whether it comes with plaunch."""
        return is_ours(self.distribution)

    @property
    def origin(self) -> str:
        """Where it is from, as `who` says."""
        return origin_of(self.distribution, self._module)


class Chosen:
    """Which plugins gave the components that were chosen."""

    def __init__(self) -> None:
        self._by_name: dict[tuple[str, str], Registration] = {}

    def note(self, kind: Kind[Any], name: str, registration: Registration) -> None:
        """A name of a kind was given by this plugin."""
        self._by_name[kind.name, name] = registration

    def find(self, kind: Kind[Any], name: str) -> Registration | None:
        """Who gave a name; None if nobody has, or the plugin comes with plaunch."""
        given = self._by_name.get((kind.name, name))
        return None if given is None or given.is_ours else given

    def last(self, kind: Kind[Any]) -> Registration | None:
        """Who gave the last name of a kind; None as `find`."""
        names = [name for of, name in self._by_name if of == kind.name]
        return self.find(kind, names[-1]) if names else None


def is_ours(distribution: Distribution | None) -> bool:
    """Whether what a distribution brings comes with plaunch."""
    return distribution is not None and distribution.key == FIRST_PARTY


def check_implementations(
    who: str, plugin: object, callers: Mapping[str, pluggy.HookCaller]
) -> None:
    """See to it that what a plugin implements are hooks, and plain functions.

    Raises:
        PluginLoadError: one of them is not.
    """
    for hook, caller in callers.items():
        for implementation in caller.get_hookimpls():
            if implementation.plugin is not plugin:
                continue
            if not caller.has_spec():
                if implementation.optionalhook:
                    continue
                raise PluginLoadError(
                    f"{who} implements hook {hook!r}, which does not exist{suggest(hook, _HOOKS)}"
                )
            if implementation.wrapper or implementation.hookwrapper:
                raise PluginLoadError(
                    f"{who} implements {hook} as a hook wrapper; each implementation is called "
                    "on its own, so that there is nothing to wrap"
                )
            if any(is_other(implementation.function) for is_other in _NOT_PLAIN):
                raise PluginLoadError(
                    f"{who} implements {hook} as a generator or a coroutine; calling it would "
                    "do nothing: make it a plain function"
                )


def ask(
    registration: Registration, hook: str, implementation: pluggy.HookImpl
) -> Mapping[str, object]:
    """What an implementation of a hook offers.

    Raises:
        PluginError: it fails, or returns something else.
    """
    who = registration.who
    try:
        if registration.is_ours:
            offers = implementation.function()
        else:
            with keeping_signals(who, hook):
                offers = implementation.function()
    except (KeyboardInterrupt, SignalException):
        raise
    except BaseException as error:
        raise PluginError(f"{who} failed in {hook}: {one_line(error)}") from error
    if not (isinstance(offers, Mapping) and all(isinstance(name, str) for name in offers)):
        raise PluginError(f"{who} returned {offers!r} from {hook}, which maps no names to anything")
    return offers


def doctor_check(implementation: pluggy.HookImpl) -> Callable[[DoctorContext], Iterable[Finding]]:
    """What an implementation of `plaunch_doctor_checks` looks at, as a check of the doctor's."""
    function: Callable[..., Any] = implementation.function
    wants_context = bool(implementation.argnames)
    return lambda context: (function(context) if wants_context else function()) or ()
