"""Runs the extensions of one launch, each call with a time limit."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from plaunch import parts
from plaunch.agent.extensions import Extension
from plaunch.agent.states import RequestKind
from plaunch.errors import PlaunchError, PluginError, ThreadStartError, one_line
from plaunch.threads import BoundedCall

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from plaunch.agent.extensions import Control, Progress, Snapshot
    from plaunch.agent.local import LocalElasticAgent
    from plaunch.agent.messages import WaitReporter
    from plaunch.agent.notifications import Notification
    from plaunch.agent.notifier import EventLog
    from plaunch.agent.poller import LoopWatchdog
    from plaunch.agent.worker import RunResult
    from plaunch.events import Event
    from plaunch.plugin.context import PluginContext
    from plaunch.plugin.guard import CallGuard
    from plaunch.plugin.hooks import HookResult
    from plaunch.plugin.manager import PluginManager
    from plaunch.process.streams import OutputStats
    from plaunch.process.watches import Held
    from plaunch.rendezvous.api import RendezvousHandler
    from plaunch.rendezvous.job import SharedTexts

logger = logging.getLogger("plaunch")

HOOK = "plaunch_extensions"
MOST_STATE = 200  # characters of a state that an extension shows
_METHODS = ("start", "handle", "stop")


class ExtensionRunner:
    """Starts one extension, passes events to it, and stops it.

    Args:
        who: its plugin, for messages.
        given: the extension, or an object with methods of one.
        guard: calls it.
        is_first_party: whether the plugin comes with plaunch.
    """

    def __init__(
        self, who: str, given: object, guard: CallGuard, *, is_first_party: bool = False
    ) -> None:
        self._extension = extension = _adopt(given)
        self.who = extension.known_as or who  # in requests and messages
        self.name = who if is_first_party else f"an extension of {who}"  # in messages about calls
        self.takes_events = extension.takes_events
        self._result: RunResult | None = None
        self._guard = guard
        self._is_started = False

    def start(self, control: Control) -> None:
        """Start the extension.

        Raises:
            PlaunchError: raised by the extension.
            PluginError: it failed, or has not returned in time.
        """
        self._guard.call(
            self.name,
            "start",
            partial(self._extension.start, control),
            self._guard.limits.start,
            passing=(PlaunchError,),
            advice="; fix what it waits for, or leave out its options",
        )
        self._is_started = True

    def handle(self, event: Event) -> None:
        """Pass an event on, unless the extension has not started."""
        if self._is_started:
            self._extension.handle(event)

    def note_result(self, result: RunResult) -> None:
        """Keep the result of the agent for `stop`; called before `close` and `end`."""
        self._result = result

    def close(self) -> None:
        """Stop the extension, if it has started."""
        if self._is_started:
            self._extension.stop(self._result)

    def end(self, seconds: float | None = None) -> None:
        """Stop the extension if it takes no events; otherwise its event queue stops it.

        Args:
            seconds: how long to wait; by default the limit for a stop.
        """
        if not self.takes_events:
            self._call("stop", self.close, seconds or self._guard.limits.stop)

    def rest(self) -> None:
        """Have the extension end its threads before the process forks."""
        self._call("rest", self._extension.rest, self._guard.limits.notification)

    def release(self) -> None:
        """Let the extension continue after `rest`."""
        self._call("release", self._extension.release, self._guard.limits.notification)

    def _call(self, method: str, function: Callable[[], object], seconds: float) -> None:
        try:
            self._guard.call(self.name, method, function, seconds)
        except PluginError as error:
            logger.warning("%s", error)


def _adopt(given: object) -> Extension:
    """Return an extension; an object with methods of one gets the defaults of the others."""
    if isinstance(given, Extension):
        return given
    extension = Extension()
    for name in ("start", "handle", "stop", "rest", "release", "takes_events", "known_as"):
        if hasattr(given, name):
            setattr(extension, name, getattr(given, name))
    return extension


class LaunchEvents(Protocol):
    """Listens to notifications, and passes their events to event handlers and extensions."""

    @property
    def dropped(self) -> Mapping[str, int]:
        """How many events were lost, by the name of the reader."""

    def handle_notification(self, notification: Notification) -> None:
        """Create the events of `notification`; blocks only at a fork and at the last one."""

    def start(self, extension: Any) -> None:
        """Begin to pass events to an extension, which has started."""


def snapshot_of_launch(
    agent: LocalElasticAgent,
    handler: RendezvousHandler,
    wait_reporter: WaitReporter,
    watchdog: LoopWatchdog,
    output_stats: OutputStats,
    events: LaunchEvents | None,
) -> Snapshot:
    """Return a snapshot of the agent, completed with the launch's own data.

    Args:
        agent: the agent.
        handler: the rendezvous handler.
        wait_reporter: describes what the handler waits for.
        watchdog: of the agent's loop.
        output_stats: counts the workers' output.
        events: counts lost events; None if the launch makes no events.
    """
    snapshot = agent.snapshot()
    return replace(
        snapshot,
        waits_for=snapshot.waits_for or ("" if snapshot.pids else wait_reporter.describe(handler)),
        overdue=watchdog.overdue(),
        patience=watchdog.patience(),
        output=output_stats.counts(),
        dropped={} if events is None else events.dropped,
    )


class AgentControl:
    """The control that an extension acts through; see `plaunch.agent.Control`.

    Args:
        agent: the agent.
        who: the plugin, for messages.
        snapshot: returns the state of the launch.
        handler: the rendezvous handler, which may share texts between nodes.
        log: the notifications of the launch; None if it has no events.
    """

    def __init__(
        self,
        agent: LocalElasticAgent,
        who: str,
        snapshot: Callable[[], Snapshot],
        handler: RendezvousHandler | None = None,
        log: EventLog | None = None,
    ) -> None:
        self._log = log
        self._event_stream: Any = None  # created by the first `take_events`
        self._events_lock = threading.Lock()
        self._agent = agent
        self._who = who
        self._snapshot = snapshot
        self._texts: SharedTexts | None = getattr(handler, "texts", None)

    def snapshot(self) -> Snapshot:
        """Return the state of the launch."""
        return self._snapshot()

    def held(self) -> Mapping[int, Held]:
        """Return the workers that are held, each with the reason and the time."""
        return self._agent.held()

    def request(self, kind: RequestKind | str, reason: str) -> None:
        """Send the agent a request."""
        self._agent.request(RequestKind(kind), _text(reason), self._who)

    def signal_workers(
        self,
        signum: signal.Signals | int,
        ranks: Collection[int] | None = None,
        reason: str = "",
    ) -> None:
        """Send a signal to workers of this node."""
        self._agent.signal_workers(signal.Signals(signum), ranks, _text(reason))

    def report_hang(self, rank: int, text: str, *, is_final: bool = False) -> None:
        """End the round as failed because its workers hang."""
        self._agent.report_hang(rank, _text(text), is_final=is_final)

    def take_events(self) -> list[Event]:
        """Return the events since the last call."""
        with self._events_lock:
            if self._log is None:
                return []
            if self._event_stream is None:
                self._event_stream = parts.load_part(parts.EVENT_STREAM)(self._log)
            events: list[Event] = self._event_stream.take()
            return events

    def note_progress(self, progress: Mapping[int, Progress]) -> None:
        """Set the workers' progress for the next snapshots."""
        self._agent.note_progress(progress)

    def note_holds(self, holds: Mapping[int, Held]) -> None:
        """Set what holds workers besides the kernel."""
        self._agent.note_holds(holds)

    def note_state(self, name: str, text: str) -> None:
        """Set a state of the extension for the next snapshots."""
        name, line = (" ".join(_text(one, "a state").split())[:MOST_STATE] for one in (name, text))
        self._agent.note_state(name, line)

    def say(self, text: str) -> None:
        """Log one line for the user."""
        logger.info("%s: %s", self._who, " ".join(text.split()))

    def publish(self, name: str, text: str) -> None:
        """Publish a text for the other nodes, if the rendezvous can."""
        if self._texts is not None:
            self._texts.publish(name, text)

    def published(
        self, name: str, timeout: float = 1.0, *, all_nodes: bool = False
    ) -> Mapping[str, str] | None:
        """Return the texts that nodes have published."""
        if self._texts is None:
            return None
        return self._texts.read(name, timeout, all_nodes=all_nodes)

    def broadcast(self, name: str, text: str) -> None:
        """Send a text to all nodes, if the rendezvous can."""
        if self._texts is not None:
            self._texts.broadcast(name, text)

    def listen(self, name: str, listener: Callable[[str], None]) -> None:
        """Call `listener` with the broadcasts of a name."""
        if self._texts is not None:
            # The rendezvous' own thread receives broadcasts, and must not wait for a listener.
            self._texts.listen(name, partial(self._deliver, name, listener))

    def _deliver(self, name: str, listener: Callable[[str], None], text: str) -> None:
        def deliver() -> None:
            try:
                listener(text)
            except BaseException as error:  # noqa: BLE001 - this thread has no caller
                said = one_line(error)
                logger.warning("an extension of %s failed at a broadcast: %s", self._who, said)

        try:
            BoundedCall(f"broadcast-{name}", deliver)
        except (ThreadStartError, RuntimeError) as error:  # the latter while the interpreter ends
            logger.warning("a broadcast to %s was dropped: %s", self._who, error)


def _text(given: object, what: str = "a reason") -> str:
    # Raise in the plugin's call, rather than later where the agent uses the text.
    if not isinstance(given, str):
        raise TypeError(f"{what} is a text, not {given!r}")
    return given


def create_extensions(manager: PluginManager, context: PluginContext) -> list[ExtensionRunner]:
    """Return a runner for each extension that plugins contribute with `plaunch_extensions`.

    Raises:
        PlaunchError: raised by a plugin.
        PluginError: a plugin failed, or returned something else.
    """
    results: list[HookResult] = manager.hook.plaunch_extensions(context=context)
    found: list[ExtensionRunner] = []
    for result in results:
        who, given = result.who, result.value
        if not isinstance(given, Iterable):
            raise PluginError(f"{who} returned {given!r} from {HOOK}, which cannot be iterated")
        for extension in given:
            if not all(callable(getattr(extension, method, None)) for method in _METHODS):
                raise PluginError(
                    f"{who} gave {extension!r} in {HOOK}, which lacks some of the methods "
                    f"{', '.join(_METHODS)}"
                )
            found.append(
                ExtensionRunner(who, extension, manager.guard, is_first_party=result.is_first_party)
            )
    return found
