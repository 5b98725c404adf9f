"""The events of one launch: finding its event handlers, and delivering events to readers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from plaunch.agent import BeforeWorkers, LaunchStarted, WorkersStarted
from plaunch.errors import PluginLoadError, UsageError
from plaunch.plugin import EVENT_HANDLERS, suggest

from plaunch_events.stream import EventStream
from plaunch_events.time_accounting import describe_restart

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    from plaunch import LaunchConfig
    from plaunch.agent import EventLog, Notification
    from plaunch.events import Event, EventHandler
    from plaunch.plugin import EventHandlerFactory, PluginContext, PluginManager

    from plaunch_events.event_queue import EventQueue

    class ExtensionHandler(EventHandler, Protocol):
        """Passes events to an extension."""

        who: str
        name: str


logger = logging.getLogger("plaunch")

_FLAG = "--event-conf"
_NO_HANDLER = "null"
_MIN_LOGGED = 1.0  # seconds of a launch that succeeded


class EventReaders:
    """The event handlers of a launch, found and checked, but not created.

    Args:
        config: the launch; it names the handlers, with their options in `options["event_conf"]`.
        manager: the plugins of the launch.
        context: what each handler is created with, except for its options.

    Raises:
        PluginError: a handler cannot be loaded.
        UsageError: a name is unknown; an option is malformed, or of a handler that is not selected;
            a handler refuses its options.
    """

    def __init__(
        self, config: LaunchConfig, manager: PluginManager, context: PluginContext
    ) -> None:
        self._manager = manager
        conf = parse_event_conf(config.options.get("event_conf", ()))
        self._found = find_event_handlers(manager, config.event_log_handler, conf)
        for name, (factory, options) in self._found.items():
            if getattr(factory, "creates_nothing", False):
                own = replace(context, options=options)
                manager.call(EVENT_HANDLERS, name, partial(factory, own))
        # Workers that are forked from this process have nothing to preload.
        self._may_advise = config.start_method != "fork" and not config.options.get("preload")

    def publish(
        self,
        log: EventLog,
        context: PluginContext,
        create_run_dir: Callable[[], str | None],
        extensions: Sequence[ExtensionHandler],
    ) -> EventPublisher:
        """Create the event handlers; the result listens to `log` for them and for `extensions`.

        `create_run_dir` is called only if a handler other than `null` is selected.

        Raises:
            PluginError: a handler failed.
            UsageError: a handler cannot use its options.
        """
        queues: list[EventQueue] = []
        if [*self._found] != [_NO_HANDLER]:
            from plaunch_events.event_queue import create_event_queues  # if there are handlers

            context = replace(context, run_dir=create_run_dir())
            queues += create_event_queues(self._manager, self._found, context)
        return EventPublisher(log, queues, extensions)


class EventPublisher:
    """Delivers the events of one launch to its event handlers and extensions.

    It listens to the log. Each reader has its own queue, so that a slow one does not block the
    agent. At the end of the launch, it waits a bounded time for the queues, and logs where the time
    of the launch went.

    Args:
        log: the notifications of the launch.
        handlers: the queues of the event handlers.
        extensions: the extensions; an event waits until its extension is started.
    """

    def __init__(
        self,
        log: EventLog,
        handlers: Sequence[EventQueue],
        extensions: Sequence[ExtensionHandler],
    ) -> None:
        self._extensions: dict[ExtensionHandler, EventQueue] = {}
        if extensions:
            from plaunch_events.event_queue import EventQueue  # if there are extensions

            for item in extensions:
                self._extensions[item] = EventQueue(item.who, item, who=item.name, head_start=None)
        self._queues = [*handlers, *self._extensions.values()]
        self._stream = EventStream(log)
        self._forks_workers = False

    @property
    def dropped(self) -> dict[str, int]:
        """How many events were lost, by the name of the handler or of the extension's plugin."""
        dropped: dict[str, int] = {}
        for queue in self._queues:  # a plugin may have several of one name
            dropped[queue.name] = dropped.get(queue.name, 0) + queue.dropped
        return dropped

    def start(self, extension: ExtensionHandler) -> None:
        """Deliver queued and future events to an extension, which has started."""
        self._extensions[extension].release()

    def handle_notification(self, notification: Notification) -> None:
        """Deliver the events of a notification.

        Waits for the readers only before workers are forked, and at the end of the launch.
        """
        if isinstance(notification, WorkersStarted):
            for queue in self._queues:
                queue.release()
        for event in self._stream.take():
            for queue in self._queues:
                queue.put(event)
            if event.name == "plaunch.restart.completed":
                took = describe_restart(_seconds(event))
                logger.info("restarted in %s", took, extra={"is_of_restart": True})
            elif event.name == "plaunch.launcher.finished":
                self._finish(event, has_joined=bool(notification.group.workers))
        if isinstance(notification, LaunchStarted):
            self._forks_workers = notification.forks
        elif isinstance(notification, BeforeWorkers) and self._forks_workers:
            for queue in self._queues:
                queue.rest()

    def _finish(self, event: Event, *, has_joined: bool) -> None:
        if self._queues:
            from plaunch_events.event_queue import close_queues  # loaded by now

            close_queues(self._queues)
        account = self._stream.account
        has_succeeded = event.metadata["outcome"] == "succeeded"
        is_brief = has_succeeded and account.seconds["total"] < _MIN_LOGGED
        if has_joined and not is_brief and (took := account.describe()):
            logger.info("this launch took %s", took, extra={"is_last": True})


def _seconds(event: Event) -> dict[str, float]:
    """The seconds of `plaunch.restart.completed`, by part."""
    prefix = "seconds_"
    return {
        key.removeprefix(prefix): float(value or 0)
        for key, value in event.metadata.items()
        if key.startswith(prefix)
    }


# --- finding handlers ----


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
            f"{_FLAG} is {given!r}; give a mapping of values by HANDLER.KEY, or texts of the form "
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
                f"{_FLAG} has {part!r} in {text!r}; write HANDLER.KEY=VALUE, or several separated "
                "by commas"
            )
        if key in conf:
            raise UsageError(f"{_FLAG} gives {key!r} twice in {text!r}")
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
                f"{_FLAG} has {key!r}, but {EVENT_HANDLERS.flag} does not name {handler!r}"
                f"{suggest(handler, by_bare_name)}"
            )
        factory, options = found[by_bare_name[handler]]
        known = _options_of(handler, factory)
        if option not in known:
            raise UsageError(
                f"{_FLAG} has {key!r}, but the event handler {handler!r} has no option {option!r}"
                f"{suggest(option, known)}"
            )
        options[option] = value
    return found


def _options_of(name: str, factory: EventHandlerFactory) -> frozenset[str]:
    options = getattr(factory, "options", ())
    if isinstance(options, str) or not all(isinstance(option, str) for option in options):
        raise PluginLoadError(
            f"the event handler {name!r} has options = {options!r}; its author must set it to a "
            "set of names"
        )
    return frozenset(options)
