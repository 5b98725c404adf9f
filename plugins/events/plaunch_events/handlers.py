"""The event handlers of one launch: finding them by name, creating them with their options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from plaunch.errors import PluginLoadError, UsageError
from plaunch.plugin import EVENT_HANDLERS, suggest

from plaunch_events.event_queue import EventQueue, close_queues

if TYPE_CHECKING:
    from plaunch.events import EventHandler
    from plaunch.plugin import EventHandlerFactory, PluginContext, PluginManager

    FoundHandlers = Mapping[str, tuple[EventHandlerFactory, dict[str, str]]]

FLAG = "--event-conf"


def parse_names(text: str) -> tuple[str, ...]:
    """Parse the names in text such as `"console,jsonl"`.

    Raises:
        UsageError: there is no name, or one is given twice.
    """
    names = tuple(filter(None, (name.strip() for name in text.split(","))))
    if not names:
        raise UsageError(
            f"{EVENT_HANDLERS.flag} is {text!r}; write one name, or several separated by commas"
        )
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{EVENT_HANDLERS.flag} names {name!r} twice in {text!r}")
    return names


def parse_event_conf(given: object) -> dict[str, str]:
    """Parse handler options into values by `handler.key`. Later texts override earlier ones.

    Args:
        given: text such as `"jsonl.path=FILE,jsonl.keep=2"`, several such texts, or a mapping that
            is returned as it is. A doubled comma is a comma of a value.

    Raises:
        UsageError: it has another type; a part is not of the form HANDLER.KEY=VALUE, or is given
            twice in one text.
    """
    if isinstance(given, Mapping):
        return dict(given)
    texts = [given] if isinstance(given, str) else given
    if not (isinstance(texts, (list, tuple)) and all(isinstance(text, str) for text in texts)):
        raise UsageError(
            f"{FLAG} is {given!r}; give a mapping of values by HANDLER.KEY, or texts of the form "
            "HANDLER.KEY=VALUE"
        )
    conf: dict[str, str] = {}
    for text in texts:
        conf.update(_parse(text))
    return conf


def _parse(text: str) -> dict[str, str]:
    conf: dict[str, str] = {}
    for part in text.replace(",,", "\0").split(","):
        if not part.strip():
            continue
        key, equals, value = (piece.strip() for piece in part.replace("\0", ",").partition("="))
        handler, dot, option = key.rpartition(".")
        if not (equals and dot and handler and option and value):
            raise UsageError(
                f"{FLAG} has {part!r} in {text!r}; write HANDLER.KEY=VALUE, or several separated "
                "by commas"
            )
        if key in conf:
            raise UsageError(f"{FLAG} gives {key!r} twice in {text!r}")
        conf[key] = value
    return conf


def find_event_handlers(
    manager: PluginManager, names: str, conf: Mapping[str, str]
) -> dict[str, tuple[EventHandlerFactory, dict[str, str]]]:
    """Find the factories of the named handlers, and the options of each, by name.

    Args:
        manager: the plugins of the launch.
        names: names separated by commas; each may be written `distribution:name`.
        conf: values by `handler.key`, where the handler is a name without distribution.

    Raises:
        PluginError: a handler cannot be loaded.
        UsageError: a name is unknown; an option is unknown, or of a handler that is not named.
    """
    found: dict[str, tuple[EventHandlerFactory, dict[str, str]]] = {}
    for name in parse_names(names):
        found[name] = (manager.get(EVENT_HANDLERS, name), {})
    by_bare_name = {name.rpartition(":")[2]: name for name in found}
    for key, value in conf.items():
        handler, _, option = key.rpartition(".")
        if handler not in by_bare_name:
            raise UsageError(
                f"{FLAG} has {key!r}, but {EVENT_HANDLERS.flag} does not name {handler!r}"
                f"{suggest(handler, by_bare_name)}"
            )
        factory, options = found[by_bare_name[handler]]
        known = _options_of(handler, factory)
        if option not in known:
            raise UsageError(
                f"{FLAG} has {key!r}, but the event handler {handler!r} has no option {option!r}"
                f"{suggest(option, known)}"
            )
        options[option] = value
    return found


def create_event_queues(
    manager: PluginManager, found: FoundHandlers, context: PluginContext
) -> list[EventQueue]:
    """Create the handlers, each with a queue; handlers with `wants_events = False` are left out.

    Raises:
        PluginError: a handler failed.
        UsageError: a handler cannot use its options.
    """
    queues: list[EventQueue] = []
    try:
        for name, (factory, options) in found.items():
            create = partial(_create, factory, replace(context, options=options))
            handler = manager.call(EVENT_HANDLERS, name, create)
            if handler is not None:
                origin = manager.origin(EVENT_HANDLERS, name)
                queues.append(EventQueue(name, handler, origin=origin))
    except BaseException:
        close_queues(queues)
        raise
    return queues


def _create(factory: EventHandlerFactory, context: PluginContext) -> EventHandler | None:
    """Create a handler; return None if it wants no events."""
    handler = factory(context)
    if not getattr(handler, "wants_events", True):
        return None
    for method in ("handle", "close"):
        if not callable(getattr(handler, method, None)):
            raise TypeError(f"it returned {handler!r}, which has no method {method!r}")
    return handler


def _options_of(name: str, factory: EventHandlerFactory) -> frozenset[str]:
    options = getattr(factory, "options", ())
    if isinstance(options, str) or not all(isinstance(option, str) for option in options):
        raise PluginLoadError(
            f"the event handler {name!r} has options = {options!r}; its author must set it to a "
            "set of names"
        )
    return frozenset(options)
