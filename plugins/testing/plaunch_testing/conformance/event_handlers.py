"""The conformance suite for event handlers."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import time
import warnings
from typing import TYPE_CHECKING, ClassVar

import pytest
from plaunch.events import EventHandler

from plaunch_testing.conformance import event_samples as samples
from plaunch_testing.conformance.plugin_suite import PluginSuite
from plaunch_testing.conformance.surroundings import OwnThread, opened, usage_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch.events import Event
    from plaunch.plugin import EventHandlerFactory


class EventHandlerConformance(PluginSuite):
    """Subclass this suite and implement `plugin`; pytest collects the subclass.

    `options` are the options that the handler needs (`--event-conf`). `burst` is the number of
    events that it must handle within `seconds`.
    """

    burst: ClassVar[int] = 1000

    def plugin(self) -> EventHandlerFactory:
        """Return the object that the handler's name refers to; override this."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _handlers(self, _surroundings: None) -> Iterator[None]:
        self._created: list[tuple[EventHandler, OwnThread]] = []
        yield
        self.end_use()
        for _, thread in self._created:
            thread.end()

    def create(self, **changes: object) -> EventHandler:
        """Create a handler with its own thread; it is closed after the test."""
        handler: EventHandler = self.call("creating it", self.thing, self.context(**changes))
        self._created.append((handler, OwnThread()))
        return handler

    def give(self, handler: EventHandler, event: Event) -> None:
        """Pass it one event, on its thread."""
        thread = self._thread_of(handler)
        thread.call(self.seconds, f"handling {event.name}", lambda: handler.handle(event))

    def handle(self, handler: EventHandler, *names: str) -> None:
        """Pass it events with these names."""
        for name in names:
            self.give(handler, samples.named(name))

    def close(self, handler: EventHandler) -> None:
        """Close it, on its thread."""
        self._thread_of(handler).call(self.seconds, "close()", handler.close)

    def _thread_of(self, handler: EventHandler) -> OwnThread:
        return next(thread for known, thread in self._created if known is handler)

    def use_once(self) -> object:
        """Pass it the events of a launch; other tests cover errors."""
        handler = self.create()
        for name in samples.NAMES:
            with contextlib.suppress(Exception):
                self.handle(handler, name)
        return handler

    def end_use(self) -> None:
        """Close all handlers."""
        for handler, _ in self._created:
            with contextlib.suppress(Exception):
                self.close(handler)

    def test_it_has_the_methods_of_a_handler(self) -> None:
        """It has `handle` and `close`."""
        handler = self.create()
        assert isinstance(handler, EventHandler), f"{handler!r} lacks one of the two methods"

    def test_its_options_are_names(self) -> None:
        """The attribute `options`, if it exists, lists the keys of its options."""
        options = getattr(self.thing, "options", ())
        assert not isinstance(options, str), f"options is {options!r}, a str"
        assert all(isinstance(key, str) for key in options), f"options is {options!r}"
        unknown = sorted(set(self.options) - set(options))
        assert not unknown, f"its options lack {unknown}"

    @pytest.mark.parametrize("name", [*samples.NAMES, "third.party.event"])
    def test_it_takes_every_event(self, name: str) -> None:
        """Including unknown ones of later versions."""
        self.handle(self.create(), name)

    @pytest.mark.parametrize("what", samples.ODD)
    def test_it_takes_odd_metadata(self, what: str) -> None:
        """Metadata may contain any text that a worker prints."""
        handler = self.create()
        self.give(handler, samples.odd(what))

    def test_it_keeps_up_with_many_events(self) -> None:
        """A restart of a large job makes thousands at once."""
        handler = self.create()
        event = samples.named("plaunch.worker.started")

        def handle_all() -> None:
            for _ in range(self.burst):
                handler.handle(event)

        what = f"handling {self.burst} events"
        self._thread_of(handler).call(self.seconds, what, handle_all)

    def test_it_does_not_change_events(self) -> None:
        """Other handlers get the same objects."""
        handler = self.create()
        event, same = (samples.named("plaunch.failure") for _ in range(2))
        self.give(handler, event)
        assert (event.name, event.source) == (same.name, same.source)
        assert dict(event.metadata) == dict(same.metadata)

    def test_it_can_be_closed_at_once(self) -> None:
        """A launch may end before its first event."""
        self.close(self.create())

    def test_it_can_be_closed_twice(self) -> None:
        """The second time does nothing."""
        handler = self.create()
        self.handle(handler, samples.NAMES[0])
        # Only the second call is under test.
        with contextlib.suppress(Exception):
            self.close(handler)
        self.close(handler)

    def test_nothing_keeps_the_launcher_alive_after_close(self) -> None:
        """Python waits for non-daemon threads before it exits."""
        before = set(threading.enumerate())
        handler = self.create()
        self.handle(handler, samples.NAMES[0])
        with contextlib.suppress(Exception):
            self.close(handler)
        deadline = time.monotonic() + self.seconds
        while time.monotonic() < deadline:
            left = [t for t in set(threading.enumerate()) - before if not t.daemon]
            if not left:
                return
            time.sleep(0.01)
        pytest.fail(f"threads are left that keep Python from ending: {left}")

    def test_no_file_is_open_after_close(self) -> None:
        """It closes all files that it opens."""
        handler = self.create()
        self.handle(handler, samples.NAMES[0])
        with contextlib.suppress(Exception):
            self.close(handler)
        assert not opened(self.files_before), "it leaves files open"

    def test_a_process_can_be_forked_beside_it(self) -> None:
        """Function workers may be forked; the handler keeps working in the launcher."""
        handler = self.create()
        self.handle(handler, samples.NAMES[0])
        with warnings.catch_warnings():
            # Python 3.12 and later warn about a fork with several threads.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = multiprocessing.get_context("fork").Process(target=_nothing)
            child.start()
        child.join(self.seconds)
        if child.is_alive():
            child.kill()
            child.join()
            pytest.fail("a process that was forked beside it does not end")
        assert child.exitcode == 0, f"the forked process ends with {child.exitcode}"
        self.handle(handler, samples.NAMES[-1])

    def test_several_do_not_mix(self) -> None:
        """Several launches may run in one process, and end at different times."""
        folder = os.path.join(self.folder, "another")
        os.mkdir(folder)
        one = self.create()
        other = self.create(run_id="another", log_dir=folder, run_dir=folder)
        self.handle(one, samples.NAMES[0])
        self.handle(other, samples.NAMES[0])
        self.close(other)
        self.handle(one, samples.NAMES[-1])

    @pytest.mark.parametrize("log_dir", [None, "/dev/null", "/dev/null/below"])
    def test_a_bad_log_folder_is_a_usage_error(self, log_dir: str | None) -> None:
        """Without a log folder, or with an unusable one, it raises nothing but `UsageError`."""
        with usage_errors():
            self.create(log_dir=log_dir, run_dir=None)


def _nothing() -> None:
    """Run in the forked process."""
