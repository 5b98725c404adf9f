"""Calls of plugins' code: named for what it does, waited for within a limit, switched off."""

from __future__ import annotations

import ctypes
import importlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import types

import pytest
from plaunch.agent.notifications import BeforeRendezvous, WorkerExited, WorkersStarted
from plaunch.errors import ExitCode, PluginError, UsageError
from plaunch.plugin import create_extensions, guard, hookimpl, notify
from plaunch.plugin.context import PluginContext
from plaunch.plugin.guard import CallGuard, CallLimits, Culprits
from plaunch.plugin.kinds import KINDS, LOGS_SPECS
from plaunch.plugin.manager import PluginManager
from plaunch.process import LogsSpecs, WorkerExit, WorkerInfo
from plaunch.testing import plugin_manager

from helpers.faults import raising
from helpers.groups import make_group
from helpers.hooks import NO_OTHERS, plugin_of
from helpers.waiting import BOUND, wait_until

WHO = "plugin 'Plugin' (module helpers.hooks)"
SHORT = CallLimits(hook=0.01, notification=0.01)
BY_NAME = {kind.name: kind for kind in KINDS}


def hangs_in(hook: str, gate) -> object:
    return plugin_of(**{hook: lambda: gate.wait(BOUND)})


@pytest.mark.parametrize("name", BY_NAME)
def test_a_hook_that_offers_and_does_not_return_is_named(gate, name) -> None:
    kind = BY_NAME[name]
    manager = plugin_manager(hangs_in(kind.hook, gate), limits=SHORT)
    with pytest.raises(PluginError) as caught:
        manager.get(kind, "x")
    assert caught.value.exit_code == ExitCode.PLUGIN
    assert str(caught.value) == (
        f"{WHO} has not returned from {kind.hook} within 0.01 s; fix what it waits for, or block "
        "it with -p no:Plugin"
    )


def test_a_hook_that_does_not_return_its_extensions_is_named(gate) -> None:
    manager = plugin_manager(hangs_in("plaunch_extensions", gate), words=NO_OTHERS, limits=SHORT)
    with pytest.raises(PluginError, match=re.escape(f"{WHO} has not returned from plaunch_ext")):
        create_extensions(manager, PluginContext("job", "role", "host"))


def test_extensions_that_are_created_by_an_iterator_have_the_same_limit(gate) -> None:
    """A hook may return an iterator, which runs the plugin's code once it is asked."""
    plugin = plugin_of(plaunch_extensions=lambda: (gate.wait(BOUND) for _ in range(1)))
    manager = plugin_manager(plugin, words=NO_OTHERS, limits=SHORT)
    with pytest.raises(PluginError, match="has not returned from plaunch_extensions"):
        create_extensions(manager, PluginContext("job", "role", "host"))


class Specs(LogsSpecs):
    """A logs spec that is never made."""


def given(kind):
    """A manager whose name `x` gives a thing, and how messages call that."""
    thing = Specs if kind is LOGS_SPECS else raising(AssertionError())
    manager = plugin_manager(plugin_of(**{kind.hook: lambda: {"x": thing}}))
    manager.get(kind, "x")
    return manager, f"{kind.label} 'x' ({kind.flag}) of module helpers.hooks"


@pytest.mark.parametrize("name", BY_NAME)
def test_a_factory_that_does_not_return_is_named(gate, name) -> None:
    kind = BY_NAME[name]
    manager, who = given(kind)
    with pytest.raises(PluginError) as caught:
        manager.call(kind, "x", lambda: gate.wait(BOUND), 0.01)
    function = "Specs" if kind is LOGS_SPECS else "fail"
    assert str(caught.value) == (
        f"{who} has not returned from {function} within 0.01 s; fix what it waits for, or select "
        f"another {kind.label}"
    )


@pytest.mark.parametrize("name", BY_NAME)
def test_a_factory_is_called_on_another_thread(name) -> None:
    manager, _ = given(BY_NAME[name])
    thread = manager.call(BY_NAME[name], "x", threading.current_thread)
    assert thread is not threading.current_thread()
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (ValueError("no"), PluginError, "of module helpers.hooks failed in fail: ValueError: no$"),
        (SystemExit(0), PluginError, "of module helpers.hooks failed in fail: SystemExit: 0$"),
        (UsageError("bad port"), UsageError, "^bad port$"),
    ],
)
def test_a_factory_that_fails_is_named(error, expected, message) -> None:
    kind = BY_NAME["rendezvous"]
    manager, _ = given(kind)
    with pytest.raises(expected, match=message):
        manager.call(kind, "x", raising(error))


def test_a_long_wait_is_logged(gate, caplog) -> None:
    with pytest.raises(PluginError):
        CallGuard(warn_after=0.01).call(WHO, "connect", lambda: gate.wait(BOUND), 0.02)
    (record,) = caplog.records
    assert record.getMessage() == (
        f"{WHO} has not returned from connect within 0.01 s; the launcher waits up to 0.02 s for it"
    )


def test_the_end_of_a_wait_is_not_logged_as_a_longer_one(gate, caplog) -> None:
    with pytest.raises(PluginError):
        CallGuard(warn_after=0.01).call(WHO, "connect", lambda: gate.wait(BOUND), 0.01)
    assert not caplog.records


# --- notification hooks ---------------------------------------------------------------------------

MOMENT = BeforeRendezvous(make_group())
A = "plugin 'a' (module tests.plugin.test_guard)"
OTHER = WorkersStarted(make_group())


@pytest.fixture
def calls() -> list[str]:
    return []


@pytest.fixture
def manager(caplog):
    caplog.set_level(logging.WARNING, "plaunch")

    def create(*plugins: object, limits=guard.DEFAULT_LIMITS, **environ: str) -> PluginManager:
        return PluginManager.create(plugins, environ=environ, first_party_only=True, limits=limits)

    return create


def listener(name: str, calls: list[str], action=None, **marks: bool):
    """A plugin called `name` with two notification hooks, which runs `action` in the first."""

    def before(self, group):
        calls.append(name)
        if action is not None:
            action()

    def started(self, group):
        calls.append(f"{name} started")

    hooks = {"plaunch_before_rendezvous": before, "plaunch_workers_started": started}
    marker = hookimpl(**marks) if marks else hookimpl
    return type(name, (), {hook: marker(function) for hook, function in hooks.items()})()


@pytest.mark.parametrize(
    ("marks", "order"),
    [({}, "abc"), ({"a": {"trylast": True}, "c": {"tryfirst": True}}, "cba")],
)
def test_the_order_is_that_of_names_but_for_marks_of_pluggy(manager, calls, marks, order) -> None:
    notify(manager(*(listener(name, calls, **marks.get(name, {})) for name in "bca")), MOMENT)
    assert calls == list(order)


def test_a_notification_without_listeners_is_ignored(manager, caplog) -> None:
    notify(manager(), MOMENT)
    assert caplog.records == []


@pytest.mark.parametrize("error", [RuntimeError("two\nlines"), SystemExit(3)], ids=repr)
def test_a_plugin_that_fails_is_reported_and_switched_off(manager, calls, caplog, error) -> None:
    tested = manager(listener("a", calls, raising(error)), listener("b", calls))
    for _ in range(3):
        notify(tested, MOMENT)
    assert calls == ["a", "b", "b", "b"]
    (record,) = caplog.records
    message = record.getMessage()
    assert f"{A} failed in plaunch_before_rendezvous" in message
    assert type(error).__name__ in message
    assert "\n" not in message
    assert record.exc_info is None


def test_an_error_without_a_text_does_not_reach_the_agent(manager, calls, caplog) -> None:
    class Mute(Exception):
        def __str__(self):
            raise KeyError("text")

    notify(manager(listener("a", calls, raising(Mute())), listener("b", calls)), MOMENT)
    assert calls == ["a", "b"]
    (record,) = caplog.records
    assert "the job goes on: Mute: <its text is not available: KeyError>" in record.getMessage()


def test_other_hooks_of_a_failed_plugin_stay_and_so_does_it_in_another_launch(
    manager, calls
) -> None:
    plugin = listener("a", calls, raising(RuntimeError()))
    tested = manager(plugin)
    notify(tested, MOMENT)
    notify(tested, OTHER)
    assert calls == ["a", "a started"]
    notify(manager(plugin), MOMENT)
    assert calls[2:] == ["a"]


def test_the_traceback_is_logged_on_request(manager, calls, caplog) -> None:
    error = RuntimeError("why")
    notify(manager(listener("a", calls, raising(error)), PLAUNCH_DEBUG="1"), MOMENT)
    (record,) = caplog.records
    assert record.exc_info[1] is error


def test_ctrl_c_ends_the_wait_for_a_plugin(manager, calls, caplog, gate) -> None:
    def interrupt():
        os.kill(os.getpid(), signal.SIGINT)
        gate.wait(BOUND)

    tested = manager(listener("a", calls, interrupt))
    with pytest.raises(KeyboardInterrupt):
        notify(tested, MOMENT)
    assert not caplog.records


def test_a_plugin_that_does_not_return_is_not_called_until_it_does(
    manager, calls, caplog, gate
) -> None:
    threads = []

    def stand():
        threads.append(threading.current_thread())
        gate.wait(BOUND)

    tested = manager(listener("a", calls, stand), listener("b", calls), limits=SHORT)
    assert tested.guard.left_behind() == []
    notify(tested, MOMENT)
    notify(tested, MOMENT)
    notify(tested, OTHER)
    assert calls == ["a", "b", "b", "b started"]  # no two hooks of one plugin at once
    assert tested.guard.left_behind() == [f"{A} has not returned from plaunch_before_rendezvous"]
    (record,) = caplog.records
    assert record.getMessage() == (
        f"{A} has not returned from plaunch_before_rendezvous within 0.01 s; plaunch does not "
        "wait for it, calls none of its hooks until it returns, and does not call this hook "
        "again; the job goes on"
    )
    gate.set()
    threads[0].join()
    notify(tested, MOMENT)
    notify(tested, OTHER)
    assert calls[4:] == ["b", "a started", "b started"]
    assert tested.guard.left_behind() == []


def test_one_that_returns_after_all_is_not_called_again(manager, calls, caplog, gate) -> None:
    ended = threading.Event()

    def dawdle():
        gate.wait(BOUND)
        ended.set()
        raise RuntimeError("too late to be heard")

    tested = manager(listener("a", calls, dawdle), limits=SHORT)
    notify(tested, MOMENT)
    gate.set()
    assert ended.wait(BOUND)
    notify(tested, MOMENT)
    assert calls == ["a"]
    assert len(caplog.records) == 1


def test_hooks_run_on_another_thread_that_is_gone_afterwards(manager, calls) -> None:
    threads = []
    tested = manager(listener("a", calls, lambda: threads.append(threading.current_thread())))
    notify(tested, MOMENT)
    (thread,) = threads
    assert thread is not threading.current_thread()
    assert not thread.is_alive()


def test_the_exits_of_many_workers_need_few_threads(manager, calls) -> None:
    """A restart of a thousand workers started a thread for each exit and listener."""
    threads = []  # keeps them, so that no two have the same id

    @hookimpl
    def plaunch_worker_exited():
        threads.append(threading.current_thread())

    hooks = {"plaunch_worker_exited": staticmethod(plaunch_worker_exited)}
    tested = manager(*(type(name, (), hooks)() for name in "ab"))
    for rank in range(500):
        seen = WorkerExit(WorkerInfo(0, rank, rank, 1, 1), 0, stopped=False)
        notify(tested, WorkerExited(make_group(), seen))
    assert len(threads) == 1000
    assert len(set(threads)) < 50  # one, unless the machine pauses for longer than it lingers
    tested.guard.rest()
    assert not any(thread.is_alive() for thread in threads)


def test_a_process_that_a_hook_starts_can_be_terminated(manager, calls, caplog) -> None:
    codes = []

    def start():
        child = subprocess.Popen(["sleep", "60"])
        child.terminate()
        codes.append(child.wait(BOUND))

    notify(manager(listener("a", calls, start)), MOMENT)
    assert codes == [-signal.SIGTERM]


@pytest.mark.parametrize(
    "why", ["can't start new thread", "can't create new thread at interpreter shutdown"]
)
def test_notifications_are_dropped_without_threads(
    manager, calls, monkeypatch, caplog, why
) -> None:
    tested = manager(listener("a", calls), listener("b", calls))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", raising(RuntimeError(why)))
        notify(tested, MOMENT)
        notify(tested, OTHER)
    assert calls == []
    (record,) = caplog.records
    assert (
        f"{A} was not notified (plaunch_before_rendezvous), and neither was any other plugin: "
        in record.getMessage()
    )
    notify(tested, MOMENT)
    assert calls == ["a", "b"]


# --- SIGCHLD --------------------------------------------------------------------------------------

LIBC = ctypes.CDLL(None)


@pytest.fixture
def _sigchld():
    before = signal.getsignal(signal.SIGCHLD)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("_sigchld")
@pytest.mark.parametrize("is_c_code", [False, True])
def test_a_change_of_sigchld_is_undone_and_named(caplog, is_c_code) -> None:
    with guard.keeping_sigchld(WHO, "while it was loaded"):
        if is_c_code:
            LIBC.signal(signal.SIGCHLD, ctypes.c_void_p(1))
        else:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{WHO} has changed what SIGCHLD does (while it was lo")
    assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
    assert subprocess.run(["sh", "-c", "exit 3"], check=False).returncode == 3


@pytest.mark.usefixtures("_sigchld")
def test_the_handler_of_a_program_comes_back(caplog) -> None:
    def handle(signum, frame):
        pass

    signal.signal(signal.SIGCHLD, handle)
    with guard.keeping_sigchld(WHO, "a hook"):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    assert signal.getsignal(signal.SIGCHLD) is handle
    caplog.clear()
    with guard.keeping_sigchld(WHO, "a hook"):
        pass
    assert not caplog.records


class Bound:
    def reify(self):
        return threading.current_thread()

    def fail(self):
        raise ValueError("no such thing")

    def leave(self):
        sys.exit(0)


def test_a_limited_call_runs_on_a_thread_that_is_gone_afterwards() -> None:
    bound, limit = Bound(), CallGuard().limited
    thread = limit(WHO, "reify", bound.reify)()
    assert thread is not threading.current_thread()
    assert not thread.is_alive()
    with pytest.raises(ValueError, match="no such thing"):
        limit(WHO, "fail", bound.fail)()
    with pytest.raises(PluginError, match=re.escape(f"{WHO} failed in leave: SystemExit: 0")):
        limit(WHO, "leave", bound.leave)()


def test_a_call_that_has_not_returned_is_not_repeated(gate) -> None:
    calls = []
    tested = CallGuard(CallLimits(others={"describe_wait": 0.05}))
    describe = tested.limited(WHO, "describe_wait", lambda: calls.append(gate.wait(BOUND)))
    with pytest.raises(PluginError, match=r"has not returned from describe_wait within 0\.05 s"):
        describe()
    with pytest.raises(PluginError, match="has still not returned from describe_wait"):
        describe()
    gate.set()
    wait_until(lambda: calls, "it returns")
    describe()
    assert calls == [True, True]


# --- whose code has raised an exception -----------------------------------------------------------


def raised_by(name: str, body: str = "raise ValueError('no')") -> Exception:
    """The error of a function of a module of that name."""
    made = types.ModuleType(name)
    exec(f"import json\ndef fail(): {body}", made.__dict__)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it is
        made.fail()
    return caught.value


def named(culprits: Culprits, error: BaseException) -> str | None:
    """The plugin that is named for an error in its function `fail`."""
    found = culprits.error_for(error)
    if found is None:
        return None
    who, text = str(found).split(" failed in fail: ")
    assert text.startswith(type(error).__name__)
    return who


@pytest.fixture
def culprits() -> Culprits:
    found = Culprits()
    found.note("acme.plugins.hooks", "plugin 'acme'")
    found.note("alone", "plugin 'alone'")
    return found


RAISERS = {
    "acme.plugins.hooks": "plugin 'acme'",
    "acme.plugins.other.deep": "plugin 'acme'",
    "acme.library": None,
    "acme": None,
    "alone": "plugin 'alone'",
    "alonesome": None,
}


@pytest.mark.parametrize("name", RAISERS)
def test_the_plugin_whose_code_raised_is_named(culprits, name) -> None:
    assert named(culprits, raised_by(name)) == RAISERS[name]


def test_the_plugin_that_called_the_failing_code_is_named(culprits) -> None:
    error = raised_by("alone", "json.loads('{')")
    assert isinstance(error, json.JSONDecodeError)
    assert named(culprits, error) == "plugin 'alone'"


@pytest.mark.parametrize(
    ("name", "who"),
    [
        ("acme.plugins.more", "plugin 'more'"),
        ("acme.plugins.more.deep", "plugin 'more'"),
        ("acme.plugins.hooks", "plugin 'acme'"),
        ("acme.plugins.shared", "plugin 'acme'"),
    ],
)
def test_each_plugin_of_a_package_stands_for_itself(culprits, name, who) -> None:
    culprits.note("acme.plugins.more", "plugin 'more'")
    assert named(culprits, raised_by(name)) == who


@pytest.mark.parametrize(
    ("name", "who"), [("shop.acme.deep", "plugin 'acme'"), ("shop.protocol", None)]
)
def test_a_namespace_package_belongs_to_no_plugin(tmp_path, monkeypatch, name, who) -> None:
    for folder in ("shop/acme", "shop"):
        (tmp_path / folder).mkdir(exist_ok=True, parents=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "shop", importlib.import_module("shop"))
    culprits = Culprits()
    culprits.note("shop.acme", "plugin 'acme'")
    assert named(culprits, raised_by(name)) == who


def test_the_function_that_plaunch_called_is_named(culprits) -> None:
    alone = types.ModuleType("alone")
    source = "def reify(): deeper()\ndef deeper(): raise ValueError('no')\nquick = lambda: deeper()"
    exec(source, alone.__dict__)
    for function, said in ((alone.reify, " in reify"), (alone.quick, "")):
        with pytest.raises(ValueError, match="no") as caught:
            function()
        found = culprits.error_for(caught.value)
        assert str(found) == f"plugin 'alone' failed{said}: ValueError: no"


def do_in_plugin(source: str):
    """Return a function of the module `alone`, which belongs to a plugin."""
    alone = types.ModuleType("alone")
    exec(f"def do(): {source}", alone.__dict__)
    return alone.do


@pytest.mark.parametrize("error", ["SystemExit", "ValueError"])
def test_an_exception_of_a_plugin_names_it(culprits, error) -> None:
    message = rf"^plugin 'alone' failed in do: {error}: no driver$"
    with pytest.raises(PluginError, match=message), culprits.naming_plugins():
        do_in_plugin(f"raise {error}('no driver')")()


def test_an_error_of_plaunch_itself_is_not_converted(culprits) -> None:
    with pytest.raises(ValueError, match="ours"), culprits.naming_plugins():
        raise ValueError("ours")


def test_an_error_that_says_what_is_wrong_passes_unchanged(culprits) -> None:
    source = "from plaunch.errors import UsageError; raise UsageError('the port is taken')"
    with pytest.raises(UsageError, match=r"^the port is taken$"), culprits.naming_plugins():
        do_in_plugin(source)()


def test_sys_exit_in_the_launcher_is_an_error(culprits, monkeypatch) -> None:
    monkeypatch.setenv("PLAUNCH_LAUNCHER", str(os.getpid()))
    with pytest.raises(PluginError, match=r"called sys.exit\(0\)"), culprits.naming_plugins():
        sys.exit(0)


def test_a_program_that_launches_may_end_itself(culprits) -> None:
    with pytest.raises(SystemExit), culprits.naming_plugins():
        sys.exit("enough")
