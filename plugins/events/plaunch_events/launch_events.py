"""The events of one launch, from the agent's notifications to handlers and extensions."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from plaunch.agent import WorkersStarted

from plaunch_events.event_queue import EventQueue, close_queues
from plaunch_events.handlers import create_event_queues, find_event_handlers, parse_event_conf
from plaunch_events.stream import EventStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Protocol

    from plaunch import LaunchConfig
    from plaunch.agent import Notification
    from plaunch.events import EventHandler
    from plaunch.plugin import PluginContext, PluginManager

    from plaunch_events.import_watch import ImportWatch

    class ExtensionHandler(EventHandler, Protocol):
        """Passes events to an extension."""

        who: str


logger = logging.getLogger("plaunch")

_NO_HANDLER = "null"


def find_events(config: LaunchConfig, manager: PluginManager) -> Callable[..., EventPublisher]:
    """Find the event handlers of a launch.

    Args:
        config: the launch; it names the handlers, with their options in `options["event_conf"]`.
        manager: the plugins of the launch.

    Returns:
        A function that creates them.

    Raises:
        PluginError: a handler cannot be loaded.
        UsageError: a name is unknown; an option is malformed, or of a handler that is not selected.
    """
    conf = parse_event_conf(config.options.get("event_conf", ()))
    found = find_event_handlers(manager, config.event_log_handler, conf)

    def create_events(
        entry_point: str,
        context: PluginContext,
        create_run_dir: Callable[[], str | None],
        extensions: Sequence[ExtensionHandler],
    ) -> EventPublisher:
        """Create the event handlers, and the events of the launch for them and `extensions`.

        `entry_point` is what is run, as users call it. `create_run_dir` is called only if a handler
        other than `null` is selected.

        Raises:
            PluginError: a handler failed.
            UsageError: a handler cannot use its options.
        """
        if [*found] != [_NO_HANDLER]:
            context = replace(context, run_dir=create_run_dir())
        queues = create_event_queues(manager, found, context)
        return EventPublisher(config, entry_point, queues, extensions)

    return create_events


class EventPublisher:
    """Makes the events of one launch, and delivers them to its event handlers and extensions.

    Each of them has its own queue, so that a slow one does not block the agent.

    Args:
        config: the launch.
        entry_point: what is run, as users call it.
        handlers: the queues of the event handlers.
        extensions: the extensions; an event waits until its extension is released.
    """

    def __init__(
        self,
        config: LaunchConfig,
        entry_point: str,
        handlers: Sequence[EventQueue],
        extensions: Sequence[ExtensionHandler],
    ) -> None:
        self._extensions = {
            item: EventQueue(item.who, item, who=f"an extension of {item.who}", head_start=None)
            for item in extensions
        }
        self._queues = [*handlers, *self._extensions.values()]
        self._stream = EventStream(config, entry_point, [queue.put for queue in self._queues])
        # Workers that are forked from this process have nothing to preload.
        self._may_advise = config.start_method != "fork" and not config.options.get("preload")
        self._has_started = False
        self._imports: ImportWatch | None = None

    @property
    def dropped(self) -> dict[str, int]:
        """How many events were lost, by the name of the handler or of the extension's plugin."""
        dropped: dict[str, int] = {}
        for queue in self._queues:  # a plugin may have several of one name
            dropped[queue.name] = dropped.get(queue.name, 0) + queue.dropped
        return dropped

    @contextlib.contextmanager
    def of_launch(self) -> Iterator[None]:
        """A context for the launch; call this object with notifications only within it.

        At the end it delivers the last event, waits a bounded time for the queues, and logs where
        the time of the launch went.
        """
        failure: BaseException | None = None
        try:
            self._stream.begin()
            yield
        except BaseException as error:
            failure = error
            raise
        finally:
            took = self._stream.finish(failure)
            close_queues(self._queues)
            if took:
                logger.info("this launch took %s", took)
            if self._imports is not None and (advice := self._imports.close()):
                logger.info("%s", advice)

    def __call__(self, notification: Notification) -> None:
        """Make the events of a notification; never blocks."""
        self._stream(notification)
        if self._imports is not None:
            self._imports(notification)
        elif self._may_advise and isinstance(notification, WorkersStarted):
            self._note_start(notification)

    def start(self, extension: ExtensionHandler) -> None:
        """Deliver queued and future events to an extension, which has started."""
        self._extensions[extension].release()

    def _note_start(self, notification: WorkersStarted) -> None:
        """Watch the imports of workers from the first restart on, if its advice would be logged."""
        if self._has_started and logger.isEnabledFor(logging.INFO):
            # It needs plaunch_hang, which may not be installed.
            with contextlib.suppress(ModuleNotFoundError):
                from plaunch_events.import_watch import ImportWatch  # restarts only

                self._imports = ImportWatch()
                self._imports(notification)
        self._has_started = True

    def rest(self) -> None:
        """Pause all handlers and extensions until `release`, for a fork."""
        for queue in self._queues:
            queue.rest()

    def release(self) -> None:
        """Start delivery to the handlers; after `rest`, resume it for all."""
        for queue in self._queues:
            queue.release()
