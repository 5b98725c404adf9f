"""Delivery of events to handlers that are slow, broken or stuck."""

from __future__ import annotations

import subprocess
import threading
import time

import pytest
from plaunch.events import Event, EventSource
from plaunch_events import event_queue as delivery_module
from plaunch_events.event_queue import EventQueue, close_queues

from helpers.calls import Call
from helpers.clock import Clock
from helpers.faults import raising
from helpers.waiting import wait_until

DEADLINE = 20.0  # seconds


def event(name="x"):
    return Event(name, EventSource.AGENT)


class Kept:
    def __init__(self):
        self.names = []
        self.closed = 0
        self.threads = set()

    def handle(self, event):
        self.names.append(event.name)
        self.threads.add(threading.current_thread())

    def close(self):
        self.closed += 1


class Gate(Kept):
    """A handler that blocks until it is opened."""

    def __init__(self):
        super().__init__()
        self.entered, self.opened = threading.Event(), threading.Event()

    def handle(self, event):
        self.entered.set()
        assert self.opened.wait(DEADLINE)
        super().handle(event)


def released(name, handler, **settings):
    """A queue that delivers events at once."""
    delivery = EventQueue(name, handler, **settings)
    delivery.release()
    return delivery


def close(*deliveries, patience=DEADLINE):
    close_queues(deliveries, patience)


def test_events_arrive_in_order_on_a_separate_thread():
    handler = Kept()
    delivery = released("kept", handler)
    for number in range(1000):
        delivery.put(event(str(number)))
    close(delivery)
    assert handler.names == [str(number) for number in range(1000)]
    assert handler.closed == 1
    (thread,) = handler.threads
    assert thread is not threading.current_thread()
    assert not thread.is_alive()


def test_no_thread_before_there_is_an_event():
    before = threading.active_count()
    delivery = EventQueue("kept", Kept())
    assert threading.active_count() == before
    close(delivery)


def test_delivery_begins_after_the_workers_start():
    handler = Kept()
    delivery = EventQueue("kept", handler, head_start=DEADLINE)
    delivery.put(event())
    assert handler.names == []
    delivery.release()
    close(delivery)
    assert handler.names == ["x"]


def test_the_head_start_is_bounded():
    handler = Gate()
    delivery = EventQueue("kept", handler, head_start=0.01)
    delivery.put(event())
    assert handler.entered.wait(DEADLINE)
    handler.opened.set()
    close(delivery)


def test_a_slow_handler_loses_events_and_their_number_is_logged(caplog):
    handler = Gate()
    delivery = released("slow", handler, limit=3)
    delivery.put(event("first"))
    assert handler.entered.wait(DEADLINE)
    for number in range(10):
        delivery.put(event(str(number)))
    assert delivery.dropped == 7
    assert caplog.text == ""
    handler.opened.set()
    close(delivery)
    assert handler.names == ["first", "0", "1", "2"]
    assert "'slow' was too slow: 7 events were dropped" in caplog.text


class Failing(Kept):
    """Raises the given errors, one for each event; None accepts an event."""

    def __init__(self, *causes):
        super().__init__()
        self.causes = list(causes)
        self.seen = []

    def handle(self, event):
        self.seen.append(event.name)
        cause = self.causes.pop(0) if self.causes else None
        if cause is not None:
            raise cause
        super().handle(event)


NO_ROUTE = ConnectionError("no route\nto host")


def put(delivery, handler, *names):
    """Put events, each after the previous one was delivered."""
    for name in names:
        delivery.put(event(name))
        wait_until(lambda name=name: handler.seen[-1:] == [name], f"event {name}")


def deliver(handler, *names, clock=time.monotonic, pauses=(0.001, 0.002)):
    delivery = released("hook", handler, origin="acme 1.0", pauses=pauses, clock=clock)
    put(delivery, handler, *names)
    return delivery


def test_a_handler_that_fails_on_an_event_gets_the_next_ones(caplog):
    handler = Failing(NO_ROUTE)
    delivery = deliver(handler, "a", "b", "c")
    close(delivery)
    assert (handler.names, handler.closed, delivery.dropped) == (["b", "c"], 1, 1)
    assert [record.getMessage() for record in caplog.records] == [
        "event handler 'hook' (acme 1.0) failed with ConnectionError: no route to host; the event "
        "is lost, the job continues, and it is called again after a pause",
        "event handler 'hook' (acme 1.0) works again after 0 s, in which it lost 1 event(s)",
        "event handler 'hook' (acme 1.0) failed on 1 event(s) in all, which are lost; the last "
        "error was ConnectionError: no route to host",
    ]


def test_failures_in_a_row_are_logged_once_and_counted(caplog):
    clock = Clock()
    handler = Failing(NO_ROUTE, NO_ROUTE, NO_ROUTE)
    delivery = deliver(handler, "a", "b", clock=clock)
    clock.now += 40
    put(delivery, handler, "c", "d")
    close(delivery)
    assert handler.names == ["d"]
    assert len(caplog.records) == 3
    assert "works again after 40 s, in which it lost 3 event(s)" in caplog.text
    assert "failed on 3 event(s) in all" in caplog.text


def test_log_messages_of_a_flapping_handler_are_limited(caplog):
    clock = Clock()
    handler = Failing(NO_ROUTE, None, NO_ROUTE, None, NO_ROUTE, None)
    delivery = deliver(handler, "a", "b", "c", "d", clock=clock, pauses=(0.001, 0.002))
    clock.now += 1  # more than the longest pause
    put(delivery, handler, "e", "f")
    close(delivery)
    assert handler.names == ["b", "d", "f"]
    said = ("called again", "works again", "3 event(s)")
    assert [caplog.text.count(text) for text in said] == [2, 2, 1]


def test_pauses_grow():
    failures = delivery_module._HandlerFailures(1.0, 60.0, Clock())
    pauses = []
    for _ in range(8):
        failures.note_failure(NO_ROUTE)
        pauses.append(failures.pause)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    failures.note_success()
    failures.note_failure(NO_ROUTE)
    assert failures.pause == 1


def test_the_end_does_not_wait_for_a_pause(caplog):
    handler = Failing(NO_ROUTE)
    delivery = deliver(handler, "a", pauses=(10 * DEADLINE, 10 * DEADLINE))
    delivery.put(event("b"))
    close(delivery)
    assert (handler.names, handler.closed) == (["b"], 1)
    assert "given up" not in caplog.text


def test_a_rest_does_not_wait_for_a_pause():
    delivery = deliver(Failing(NO_ROUTE), "a", pauses=(10 * DEADLINE, 10 * DEADLINE))
    assert delivery.rest(DEADLINE)
    close(delivery)


def test_a_handler_that_always_fails_does_not_affect_others(caplog):
    broken, kept = Failing(*[SystemExit("no")] * 3), Kept()
    deliveries = [released("broken", broken, pauses=(0.001, 0.002)), released("kept", kept)]
    for delivery in deliveries:
        for _ in range(3):
            delivery.put(event())
    close(*deliveries)
    assert (len(broken.seen), broken.names, broken.closed) == (3, [], 1)
    assert (len(kept.names), kept.closed) == (3, 1)
    assert "'broken' failed on 3 event(s) in all, which are lost" in caplog.text


@pytest.mark.parametrize("error", [OSError("still full"), SystemExit("no")])
def test_a_handler_that_cannot_close(caplog, error):
    broken = Kept()
    broken.close = raising(error)
    close(EventQueue("broken", broken))
    assert str(error) in caplog.text


def test_a_stuck_handler_is_abandoned(caplog):
    handler = Gate()
    stuck, fine = released("stuck", handler), released("fine", Kept())
    for delivery in (stuck, fine):
        delivery.put(event())
    assert handler.entered.wait(DEADLINE)
    stuck.put(event())
    stuck.put(event())
    began = time.monotonic()
    close(stuck, fine, patience=0.05)
    assert time.monotonic() - began < DEADLINE
    assert "'stuck' did not finish in time and is abandoned; 2 events are lost" in caplog.text
    assert "'fine'" not in caplog.text
    stuck.put(event())
    handler.opened.set()
    for thread in threading.enumerate():
        if thread.name == "plaunch-events-stuck":
            thread.join(DEADLINE)
    assert (handler.names, handler.closed) == (["x"], 0)


def test_a_rest_ends_the_thread_and_loses_nothing():
    handler = Kept()
    delivery = released("kept", handler)
    delivery.put(event("before"))
    assert delivery.rest()
    assert not any(thread.name == "plaunch-events-kept" for thread in threading.enumerate())
    delivery.put(event("meanwhile"))
    assert not any(thread.name == "plaunch-events-kept" for thread in threading.enumerate())
    delivery.release()
    close(delivery)
    assert handler.names == ["before", "meanwhile"]


def test_a_rest_waits_a_bounded_time_for_a_handler():
    handler = Gate()
    delivery = released("stuck", handler)
    delivery.put(event())
    assert handler.entered.wait(DEADLINE)
    assert not delivery.rest(0.01)
    handler.opened.set()
    delivery.release()
    delivery.put(event("after"))
    close(delivery)
    assert handler.names == ["x", "after"]


def test_a_thread_cannot_be_started(monkeypatch, caplog):
    refuse = raising(RuntimeError("can't start new thread"))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    delivery = EventQueue("kept", Kept())
    delivery.put(event())
    delivery.put(event())
    close(delivery)
    assert caplog.text.count("can't start new thread") == 1


def test_processes_of_a_handler_can_be_terminated():
    ends = []

    class Starting(Kept):
        def handle(self, event):
            with subprocess.Popen(["sleep", "600"]) as child:
                child.terminate()
                try:
                    ends.append(child.wait(DEADLINE))
                finally:
                    child.kill()

    delivery = EventQueue("starting", Starting())
    delivery.put(event())
    close(delivery)
    assert ends == [-15]


def test_an_exception_without_a_message_text(caplog):
    class Speechless(Exception):
        def __str__(self):
            raise ValueError("no words")

    handler = Failing(*[Speechless()] * 3)
    close(deliver(handler, *"abc"))
    assert handler.seen == ["a", "b", "c"]
    assert "failed with Speechless: <its text is not available: ValueError>" in caplog.text


def test_put_does_not_block_on_the_text_of_an_exception():
    entered, go = threading.Event(), threading.Event()

    class Slow(Exception):
        def __str__(self):
            entered.set()
            assert go.wait(DEADLINE)
            return "slow"

    delivery = released("slow", Failing(Slow(), Slow()), pauses=(0.001, 0.002))
    delivery.put(event())
    assert entered.wait(DEADLINE)
    assert Call(delivery.put, event()).ended(DEADLINE)
    go.set()
    close(delivery)


def test_events_dropped_during_an_outage_are_not_counted_as_too_slow(caplog):
    away = Failing(*[RuntimeError("away")] * 9)
    delivery = released("away", away, limit=2, pauses=(1000.0, 1000.0))
    delivery.put(event())
    wait_until(lambda: delivery.dropped == 1, "the failure")
    for _ in range(5):
        delivery.put(event())
    close(delivery)
    assert "was too slow" not in caplog.text
    assert "which are lost, as are 3 that came meanwhile" in caplog.text
