"""Extensions: made by plugins, started in bounds, and named for what they do."""

from __future__ import annotations

import logging
import queue
import threading
import time

import pytest
from plaunch import agent
from plaunch.agent import Progress, RequestKind, Snapshot
from plaunch.errors import PluginError, UsageError
from plaunch.plugin import create_extensions
from plaunch.plugin.context import PluginContext
from plaunch.plugin.extensions import AgentControl, ExtensionRunner
from plaunch.plugin.guard import CallGuard, CallLimits
from plaunch.process import Held
from plaunch.testing import plugin_manager
from plaunch_events.event_queue import EventQueue

from helpers.faults import raising
from helpers.hooks import NO_OTHERS, plugin_of
from helpers.waiting import wait_until

CONTEXT = PluginContext("job", "role", "host")


class Extension:
    """Records the calls of its methods."""

    def __init__(self, error=None):
        self.calls = []
        self._error = error

    def start(self, control):
        if self._error is not None:
            raise self._error
        self.calls.append(("start", control))

    def handle(self, event):
        self.calls.append(("handle", event))

    def stop(self, result):
        self.calls.append(("stop", result))


def created(answer):
    def offer(context):
        assert context == CONTEXT
        if isinstance(answer, BaseException):
            raise answer
        return answer

    plugins = plugin_manager(plugin_of(plaunch_extensions=offer), words=NO_OTHERS)
    return create_extensions(plugins, CONTEXT)


@pytest.mark.parametrize("answer", [None, [], ()])
def test_a_plugin_may_return_no_extension(answer):
    assert created(answer) == []


def test_an_extension_has_its_events_and_its_end():
    extension = Extension()
    (item,) = created([extension])
    item.start("control")
    item.handle("event")
    item.note_result("result")
    item.close()
    assert extension.calls == [("start", "control"), ("handle", "event"), ("stop", "result")]
    item.rest()  # which it need not know
    item.release()


def test_a_subclass_defines_only_the_methods_that_it_needs():
    class Stops(agent.Extension):
        known_as = "the end"

        def stop(self, result):
            ended.append(result)

    ended = []
    (item,) = created([Stops()])
    item.start("control")
    item.handle("event")
    item.note_result("result")
    item.close()
    assert (ended, item.who, item.takes_events) == (["result"], "the end", True)


def test_events_wait_until_it_has_started():
    extension = Extension()
    item = ExtensionRunner("P", extension, CallGuard())
    queue = EventQueue("P", item, head_start=None)
    queue.put("early")
    item.start("control")
    queue.release()
    queue.put("late")
    queue.finish()
    queue.wait(time.monotonic() + 60)
    assert [word for word, _ in extension.calls] == ["start", "handle", "handle", "stop"]


@pytest.mark.parametrize("raised", [None, ValueError("no")])
def test_an_extension_that_has_not_started_gets_no_events(raised):
    extension = Extension(raised)
    item = ExtensionRunner("P", extension, CallGuard())
    if raised is not None:
        with pytest.raises(PluginError):
            item.start("control")
    queue = EventQueue("P", item, head_start=None)
    queue.put("event")
    queue.finish()
    queue.wait(time.monotonic() + 60)
    assert extension.calls == []


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (ValueError("no"), PluginError, "'Plugin' .* failed in plaunch_extensions: ValueError: no"),
        (SystemExit(0), PluginError, "'Plugin' .* failed in plaunch_extensions: SystemExit: 0"),
        (UsageError("bad port"), UsageError, "^bad port$"),
        ([object()], PluginError, "lacks some of the methods start, handle, stop"),
        (3, PluginError, "returned 3 from plaunch_extensions, which cannot be"),
    ],
)
def test_an_invalid_extension_is_refused(answer, error, message):
    with pytest.raises(error, match=message):
        created(answer)


@pytest.mark.parametrize(
    ("raised", "error", "message"),
    [
        (ValueError("no"), PluginError, "an extension of P failed in start: ValueError"),
        (SystemExit(0), PluginError, "an extension of P failed in start: SystemExit"),
        (UsageError("the port is taken"), UsageError, "^the port is taken$"),
    ],
)
def test_an_extension_that_cannot_start_ends_the_launch(raised, error, message):
    with pytest.raises(error, match=message):
        ExtensionRunner("P", Extension(raised), CallGuard()).start(None)


def test_an_extension_that_hangs_does_not_hold_the_launch(gate):
    hangs = Extension()
    hangs.start = lambda control: gate.wait(60)
    with pytest.raises(PluginError, match=r"has not returned from start within 0\.1 s"):
        ExtensionRunner("P", hangs, CallGuard(CallLimits(start=0.1))).start(None)


def test_rest_and_release_are_called_and_their_errors_logged(caplog):
    rests = []

    threaded = Extension()
    threaded.rest = lambda: rests.append("rest")
    threaded.release = raising(ValueError("no thread"))
    item = ExtensionRunner("P", threaded, CallGuard())
    item.rest()
    item.release()
    assert rests == ["rest"]
    assert "an extension of P failed in release: ValueError: no thread" in caplog.text


class Agent:
    """An agent that keeps what it is asked for."""

    def __init__(self):
        self.asked = []
        self.progress, self.notes = None, {}

    def note_progress(self, progress):
        self.progress = progress

    def note_holds(self, holds):
        self.holds = holds

    def note_state(self, name, text):
        self.notes[name] = text

    def snapshot(self):
        return Snapshot("HEALTHY", 2, 1, {0: 4}, {0: 77})

    def request(self, kind, reason, who):
        self.asked.append((kind, reason, who))

    def report_hang(self, rank, text, *, is_final):
        self.asked.append((rank, text, is_final))

    def signal_workers(self, signum, ranks, reason):
        self.asked.append((signum, ranks, reason))


def test_what_an_extension_can_do(caplog):
    caplog.set_level(logging.INFO, "plaunch")
    agent = Agent()
    control = AgentControl(agent, "plugin 'acme'", agent.snapshot)
    assert control.snapshot() == Snapshot("HEALTHY", 2, 1, {0: 4}, {0: 77})
    control.request("restart", "a file is there")
    control.signal_workers(10, [4], "it is late")
    control.report_hang(4, "no worker\nhas moved", is_final=True)
    control.say("one\nline")
    progress = {4: Progress(3, 20, 0.5)}
    control.note_progress(progress)
    assert agent.progress == progress
    control.note_holds({4: Held("at a prompt of pdb", 1e9, 77)})
    assert agent.holds == {4: ("at a prompt of pdb", 1e9, 77)}
    control.note_state("uploads", "2 wait\nfor the network")
    control.note_state("cache", "x" * 300)
    assert agent.notes == {"uploads": "2 wait for the network", "cache": "x" * 200}
    with pytest.raises(TypeError, match="a state is a text, not 7"):
        control.note_state("cache", 7)
    assert agent.asked == [
        (RequestKind.RESTART, "a file is there", "plugin 'acme'"),
        (10, [4], "it is late"),
        (4, "no worker\nhas moved", True),
    ]
    assert "plugin 'acme': one line" in caplog.text
    with pytest.raises(ValueError, match="'dance' is not a valid RequestKind"):
        control.request("dance", "")
    with pytest.raises(TypeError, match="a reason is a text, not None"):
        control.request("stop", None)


class Handler:
    """Of a rendezvous whose nodes hear each other; there is this one only."""

    def __init__(self):
        self.texts = self
        self.listeners = {}
        self.shown = {}

    def publish(self, name, text):
        self.shown[name] = text

    def read(self, name, timeout, *, all_nodes):
        return {"a": self.shown.get(name, "")}

    def broadcast(self, name, text):
        self.listeners[name](text)

    def listen(self, name, listener):
        self.listeners[name] = listener


def test_an_extension_listens_to_other_nodes_on_a_thread(caplog):
    """It has a thread for it, so that it holds nobody, and is named if it fails."""
    agent = Agent()
    control = AgentControl(agent, "plugin 'acme'", agent.snapshot, Handler())
    heard = queue.Queue()

    def listen(text):
        heard.put((text, threading.current_thread().name))
        raise KeyError(text)

    control.listen("acme", listen)
    control.broadcast("acme", "where are you?")
    assert heard.get(timeout=30) == ("where are you?", "plaunch-broadcast-acme")
    wait_until(lambda: "plugin 'acme' failed at a broadcast: KeyError" in caplog.text, caplog.text)
    control.publish("acme", "here")
    assert control.published("acme", all_nodes=True) == {"a": "here"}


def test_without_messages_between_nodes_broadcasts_are_ignored():
    agent = Agent()
    control = AgentControl(agent, "plugin 'acme'", agent.snapshot, object())
    control.listen("acme", pytest.fail)
    control.broadcast("acme", "where are you?")
    control.publish("acme", "here")
    assert control.published("acme") is None


class Quiet(Extension):
    """Takes no events."""

    takes_events = False


def test_an_extension_without_events_is_stopped_at_the_end_of_the_launch():
    created_here = []
    for kind in (Quiet, Extension):
        extension = kind()
        item = ExtensionRunner("P", extension, CallGuard())
        item.start("control")
        item.note_result("result")
        created_here.append((item, extension))
    for item, _ in created_here:
        item.end()
    (_, quiet), (_, other) = created_here
    assert quiet.calls == [("start", "control"), ("stop", "result")]
    assert other.calls == [("start", "control")]  # the queue of its events does it


def test_an_extension_without_events_that_hangs_does_not_delay_the_end(gate, caplog):
    hangs = Quiet()
    hangs.stop = lambda result: gate.wait(60)
    item = ExtensionRunner("P", hangs, CallGuard(CallLimits(stop=0.1)))
    item.start(None)
    item.end()
    assert "an extension of P has not returned from stop within 0.1 s" in caplog.text


def test_known_as_is_the_name_in_messages(caplog):
    own = Quiet()
    own.known_as = "the watch"
    own.stop = raising(ValueError("no socket"))
    item = ExtensionRunner("P", own, CallGuard())
    assert item.who == "the watch"
    item.start(None)
    item.end()
    assert "an extension of P failed in stop" in caplog.text  # whose fault it is
