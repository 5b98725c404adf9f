"""The conformance suite for event handlers, and its sample events."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import time
import warnings
from typing import TYPE_CHECKING, ClassVar

import pytest
from plaunch.events import Event, EventHandler, EventSource
from plaunch_events import COMMON_KEYS, SCHEMA

from plaunch_testing.conformance.plugin_suite import (
    OwnThread,
    PluginSuite,
    descriptors,
    opened,
    usage_errors,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch.events import EventMetadataValue
    from plaunch.plugin import EventHandlerFactory

# Sample values by key; other keys have a text.
_VALUES: dict[str, EventMetadataValue] = {
    "run_id": "conformance",
    "attempt": 0,
    "round": 1,
    "host": "node0",
    "role": "default",
    "agent_pid": 4242,
    "group_rank": 0,
    "ranks": "0-1",
    "min_nodes": 1,
    "max_nodes": 4,
    "local_world_size": 2,
    "max_restarts": 3,
    "duration": 2.1,
    "group_world_size": 1,
    "world_size": 2,
    "master_addr": "node0",
    "master_port": 29500,
    "local_rank": 1,
    "global_rank": 1,
    "role_rank": 1,
    "role_world_size": 2,
    "worker_pid": 4243,
    "exit_code": -9,
    "signal_name": "SIGKILL",
    "stopped": False,
    "lifetime": 12.5,
    "elapsed": 14.6,
    "is_first": True,
    "last_lines": "one\ntwo\n",
    "cause": "failure",
    "kind": "arrived",
    "signum": 15,
    "action": "stop",
    "step": "signalled",
    "seconds": 0.0,
    "old": "HEALTHY",
    "new": "STOPPED",
    "outcome": "signalled",
    "seconds_total": 30.0,
    "seconds_noticing": 0.5,
    "seconds_waiting": 2.0,
    "seconds_starting": 1.0,
    "seconds_training": 25.0,
    "seconds_stopping": 1.0,
    "seconds_lost": 1.0,
    "seconds_preloading": 0.5,
    "modules": "torch,numpy",
    "forked": True,
}
# torchrun's events, recorded by programs written for it.
_TORCHRUN = {
    f"torchelastic.worker.status.{state}": source
    for state, source in (
        ("RENDEZVOUS", EventSource.AGENT),
        ("START", EventSource.WORKER),
        ("SUCCEEDED", EventSource.WORKER),
        ("FAILED", EventSource.WORKER),
        ("TERMINATED", EventSource.WORKER),
    )
}
_OF_TORCHRUN: dict[str, EventMetadataValue] = {
    "run_id": "conformance",
    "global_rank": 1,
    "group_rank": 0,
    "worker_id": "4243",
    "role": "default",
    "hostname": "node0",
    "total_run_time": 14.6,
    "rdzv_backend": "static",
    "raw_error": None,
    "metadata": '{"group_world_size": 1, "entry_point": "train.py", "local_rank": [1]}',
    "agent_restarts": 0,
    "duration_ms": None,
}
NAMES = (*SCHEMA, *_TORCHRUN)

_COMMON = {key: _VALUES.get(key, "some text") for key in COMMON_KEYS}
ODD: dict[str, dict[str, EventMetadataValue]] = {
    "no metadata at all": {},
    "values that are None": dict.fromkeys(
        (*COMMON_KEYS, *SCHEMA["plaunch.worker.exited"].keys), None
    ),
    "text of other alphabets": {
        **_COMMON,
        "message": "Gr\u00f6\u00dfe \u5927\u5c0f \U0001f525 \u2028",
    },
    "text that is not UTF-8": {**_COMMON, "message": "a \udcff b"},
    "several lines": {**_COMMON, "message": 'line\nline\r\n\ttab "quoted" \\ {brace} %s'},
    "control characters": {**_COMMON, "message": "\x00\x1b[31mred\x1b[0m\x7f"},
    "long text": {**_COMMON, "message": "x" * (1 << 20)},
    "numbers without bounds": {**_COMMON, "duration": float("inf"), "exit_code": 1 << 80},
    "no number": {**_COMMON, "duration": float("nan")},
    "unknown keys": {**_COMMON, "a new key": True, "": 0},
}


def named(name: str) -> Event:
    """Return an event with this name as in a launch; an unknown one has the common metadata."""
    if name in _TORCHRUN:
        state = name.rpartition(".")[2]
        return Event(name=name, source=_TORCHRUN[name], metadata={**_OF_TORCHRUN, "state": state})
    if name not in SCHEMA:
        return Event(name=name, source=EventSource.AGENT, metadata=dict(_COMMON))
    keys = (*COMMON_KEYS, *SCHEMA[name].keys)
    metadata = {key: _VALUES.get(key, "some text") for key in keys}
    return Event(name=name, source=SCHEMA[name].source, metadata=metadata)


def odd(what: str, name: str = "plaunch.worker.exited") -> Event:
    """Return an event with odd metadata; `what` is a key of `ODD`."""
    return Event(name=name, source=EventSource.WORKER, metadata=ODD[what])


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
            self.give(handler, named(name))

    def close(self, handler: EventHandler) -> None:
        """Close it, on its thread."""
        self._thread_of(handler).call(self.seconds, "close()", handler.close)

    def _thread_of(self, handler: EventHandler) -> OwnThread:
        return next(thread for known, thread in self._created if known is handler)

    def use_once(self) -> object:
        """Pass it the events of a launch; other tests cover errors."""
        handler = self.create()
        for name in NAMES:
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

    @pytest.mark.parametrize("name", [*NAMES, "third.party.event"])
    def test_it_takes_every_event(self, name: str) -> None:
        """Including unknown ones of later versions."""
        self.handle(self.create(), name)

    @pytest.mark.parametrize("what", ODD)
    def test_it_takes_odd_metadata(self, what: str) -> None:
        """Metadata may contain any text that a worker prints."""
        handler = self.create()
        self.give(handler, odd(what))

    def test_it_keeps_up_with_many_events(self) -> None:
        """A restart of a large job makes thousands at once."""
        handler = self.create()
        event = named("plaunch.worker.started")

        def handle_all() -> None:
            for _ in range(self.burst):
                handler.handle(event)

        what = f"handling {self.burst} events"
        self._thread_of(handler).call(self.seconds, what, handle_all)

    def test_it_does_not_change_events(self) -> None:
        """Other handlers get the same objects."""
        handler = self.create()
        event, same = (named("plaunch.failure") for _ in range(2))
        self.give(handler, event)
        assert (event.name, event.source) == (same.name, same.source)
        assert dict(event.metadata) == dict(same.metadata)

    def test_it_can_be_closed_at_once(self) -> None:
        """A launch may end before its first event."""
        self.close(self.create())

    def test_it_can_be_closed_twice(self) -> None:
        """The second time does nothing."""
        handler = self.create()
        self.handle(handler, NAMES[0])
        # Only the second call is under test.
        with contextlib.suppress(Exception):
            self.close(handler)
        self.close(handler)

    def test_nothing_keeps_the_launcher_alive_after_close(self) -> None:
        """Python waits for non-daemon threads before it exits."""
        before = set(threading.enumerate())
        handler = self.create()
        self.handle(handler, NAMES[0])
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
        """It closes all files that it opens; a server of the test may have its own."""
        before = descriptors()
        handler = self.create()
        self.handle(handler, NAMES[0])
        with contextlib.suppress(Exception):
            self.close(handler)
        deadline = time.monotonic() + self.seconds  # a thread of its own may close them
        while (left := opened(before)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not left, f"it leaves files open: {', '.join(left)}"

    def test_a_process_can_be_forked_beside_it(self) -> None:
        """Function workers may be forked; the handler keeps working in the launcher."""
        handler = self.create()
        self.handle(handler, NAMES[0])
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
        self.handle(handler, NAMES[-1])

    def test_several_do_not_mix(self) -> None:
        """Several launches may run in one process, and end at different times."""
        folder = os.path.join(self.folder, "another")
        os.mkdir(folder)
        one = self.create()
        other = self.create(run_id="another", log_dir=folder, run_dir=folder)
        self.handle(one, NAMES[0])
        self.handle(other, NAMES[0])
        self.close(other)
        self.handle(one, NAMES[-1])

    @pytest.mark.parametrize("log_dir", [None, "/dev/null", "/dev/null/below"])
    def test_a_bad_log_folder_is_a_usage_error(self, log_dir: str | None) -> None:
        """Without a log folder, or with an unusable one, it raises only `UsageError`."""
        with usage_errors():
            self.create(log_dir=log_dir, run_dir=None)


def _nothing() -> None:
    """Run in the forked process."""
