"""What is said when a plugin cannot be loaded: whose it is, why, and what to do."""

from __future__ import annotations

import re
import signal

import pytest
from plaunch.errors import ExitCode, PluginLoadError, SignalException
from plaunch.plugin import hookimpl
from plaunch.plugin.kinds import DEVICE_COUNTS, EVENT_HANDLERS, LOGS_SPECS
from plaunch.testing import plugin_manager

from helpers.faults import raising

COUNTS = "plaunch.device_counts"
LIFECYCLE_GROUP = "plaunch.plugins"

WHO = "device counter 'one' (distribution Acme.X 1.5, module mod)"


def failure(site, value: str, source: str | None = None, group: str = COUNTS) -> PluginLoadError:
    """The error of selecting `one`, or of loading it if it is always on."""
    modules = {} if source is None else {"mod": source}
    site.install(
        "acme_x", {group: {"one": value}}, version="1.5", metadata_name="Acme.X", **modules
    )
    with pytest.raises(PluginLoadError) as caught:
        site.manager().get(DEVICE_COUNTS, "one")
    assert caught.value.exit_code == ExitCode.PLUGIN
    assert "\n" not in str(caught.value)
    return caught.value


BROKEN = {
    "an error": ("mod:count", "raise RuntimeError('two\\n  lines')", "RuntimeError: two lines"),
    "an exit": ("mod:count", "raise SystemExit(3)", "SystemExit: 3"),
    "an error without words": ("mod:count", "raise OSError", "OSError"),
    "an exception beside the usual": (
        "mod:count",
        "class Odd(BaseException): pass\nraise Odd('x')",
        "Odd: x",
    ),
    "another package missing": (
        "mod:count",
        "import no_such_package",
        "ModuleNotFoundError: No module named 'no_such_package'",
    ),
    "an extra missing": (
        "mod:count [fast, slow]",
        "import no_such_package",
        "ModuleNotFoundError: No module named 'no_such_package'; pip install 'Acme.X[fast,slow]'",
    ),
    "extras, but another error": ("mod:count [fast]", "raise OSError('x')", "OSError: x"),
    "an attribute missing": (
        "mod:count",
        "",
        "AttributeError: module 'mod' has no attribute 'count'",
    ),
    "an attribute of an attribute missing": (
        "mod:count.deep",
        "def count(): pass",
        "AttributeError: 'function' object has no attribute 'deep'",
    ),
    "itself missing": (
        "mod:count",
        None,
        "ModuleNotFoundError: No module named 'mod'; reinstall 'Acme.X', which lists it",
    ),
    "itself missing, with an extra": (
        "mod:count [fast]",
        None,
        "ModuleNotFoundError: No module named 'mod'; reinstall 'Acme.X', which lists it",
    ),
    "a class of hooks that cannot be created": (
        "mod:Counters",
        """
        from plaunch.plugin import hookimpl
        class Counters:
            def __init__(self, wanted): pass
            @hookimpl
            def plaunch_device_counts(self): return {}
        """,
        "TypeError: Counters.__init__() missing 1 required positional argument: 'wanted'",
    ),
}


@pytest.mark.parametrize(("value", "source", "words"), BROKEN.values(), ids=BROKEN)
def test_a_plugin_that_cannot_be_loaded(site, value, source, words) -> None:
    error = failure(site, value, source)
    assert str(error) == f"{WHO} cannot be loaded: {words}"
    assert type(error.__cause__).__name__ == words.partition(":")[0]


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SignalException("stopped", signal.SIGTERM)], ids=repr
)
def test_an_interrupted_import_is_no_broken_plugin(site, monkeypatch, error) -> None:
    site.install("acme", {COUNTS: {"one": "mod:count"}})
    manager = site.manager()
    monkeypatch.setattr("plaunch.plugin.registry.importlib.import_module", raising(error))
    with pytest.raises(type(error)):
        manager.get(DEVICE_COUNTS, "one")


FORM = "its entry point is not of the form MODULE:OBJECT.*the author of 'Acme.X' must correct it$"


@pytest.mark.parametrize(
    ("value", "source", "said"),
    [
        *((value, None, FORM) for value in ("", "my-mod:count", "mod:count [x", "mod:a:b")),
        ("mod:count", "def count(: pass", "SyntaxError"),
        ("mod", "", "cannot be called; plaunch_device_counts says what a device counter is"),
    ],
)
def test_an_entry_point_that_cannot_be_used(site, value, source, said) -> None:
    assert re.search(said, str(failure(site, value, source)))


@pytest.mark.parametrize(
    ("hook", "offer", "said"),
    [
        (
            "plaunch_device_counts",
            {"two": None, "three": None},
            "does not offer a device counter 'one', as its entry point says; it offers 'three', "
            "'two'",
        ),
        ("plaunch_signal_policies", {"one": None}, "it offers nothing in plaunch_device_counts"),
    ],
)
def test_an_entry_point_must_offer_its_own_name_and_kind(site, hook, offer, said) -> None:
    source = f"import plaunch\n@plaunch.hookimpl\ndef {hook}(): return {offer}\n"
    message = str(failure(site, "mod", source))
    assert message.startswith(f"{WHO} does not offer")
    assert message.endswith(said)


@pytest.mark.parametrize("value", ["mod:number", "mod:function", "mod:Other"])
def test_a_logs_spec_is_a_class_derived_from_logs_specs(site, value) -> None:
    site.install(
        "acme",
        {"torchrun.logs_specs": {"flat": value}},
        mod="number = 3\ndef function(): pass\nclass Other: pass\n",
    )
    with pytest.raises(PluginLoadError, match=r"logs spec 'flat'.*mod.*gives"):
        site.manager().get(LOGS_SPECS, "flat")


def test_a_factory_can_be_any_callable(site) -> None:
    site.install(
        "acme",
        {COUNTS: {"partial": "mod:partial", "instance": "mod:instance", "builtin": "os:cpu_count"}},
        mod="""
            import functools
            partial = functools.partial(int, "5")
            class Callable:
                def __call__(self): return 6
            instance = Callable()
        """,
    )
    manager = site.manager()
    assert manager.get(DEVICE_COUNTS, "partial")() == 5
    assert manager.get(DEVICE_COUNTS, "instance")() == 6
    assert callable(manager.get(DEVICE_COUNTS, "builtin"))


# --- plugins that are always on -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise OSError('x')", "OSError: x"),
        ("", "nothing in it is marked with plaunch.hookimpl"),
        ("def plaunch_worker_env(): pass", "'plaunch_worker_env', which is named like a hook"),
        (
            "import plaunch\n@plaunch.hookimpl\ndef plaunch_worker_environ(): pass",
            "implements hook 'plaunch_worker_environ', which does not exist; did you mean "
            "'plaunch_worker_env'?",
        ),
    ],
)
def test_a_broken_plugin_of_hooks_stops_the_launch(site, source, words) -> None:
    error = failure(site, "mod", source, LIFECYCLE_GROUP)
    assert str(error).startswith("plugin 'one' (distribution Acme.X 1.5, module mod)")
    assert words in str(error)
    assert str(error).endswith("; to continue without it, give -p no:one")
    assert site.manager("no:one")


# --- hooks that are wrong -------------------------------------------------------------------------


async def coroutine(self, group):
    """No hook."""


UNMARKED = "'plaunch_workers_started', which is named like a hook but is not marked"
UNFIT = "as a generator or a coroutine"
STARTED = "plaunch_workers_started"
WRONG = {
    "Misspelt": (
        {"plaunch_worker_started": hookimpl(lambda self, group: None)},
        r"'plaunch_worker_started', which does not exist; did you mean "
        r"'plaunch_workers_started'\? Choices: plaunch_after_rendezvous, plaunch_agent_finished",
    ),
    "Unmarked": (
        {"plaunch_device_counts": hookimpl(lambda self: {}), STARTED: lambda self, group: None},
        UNMARKED,
    ),
    "UnmarkedStatic": ({STARTED: staticmethod(lambda group: None)}, UNMARKED),
    "WrongArguments": (
        {STARTED: hookimpl(lambda self, grp: None)},
        "cannot be registered: PluginValidationError: .*plaunch_workers_started.*grp",
    ),
    "Wrapper": (
        {STARTED: hookimpl(wrapper=True)(lambda self, group: (yield))},
        "implements plaunch_workers_started as a hook wrapper",
    ),
    "Coroutine": ({STARTED: hookimpl(coroutine)}, f"implements {STARTED} {UNFIT}"),
    "Generator": (
        {"plaunch_worker_env": hookimpl(lambda self, worker: (yield "A", "1"))},
        f"implements plaunch_worker_env {UNFIT}",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_hook_is_refused(name) -> None:
    methods, words = WRONG[name]
    with pytest.raises(PluginLoadError, match=words) as caught:
        plugin_manager(type(name, (), methods)())
    assert str(caught.value).startswith(f"plugin {name!r} (module ")
    assert "\n" not in str(caught.value)


def test_a_hook_may_be_of_a_later_version_or_have_another_name_in_the_plugin() -> None:
    class Modern:
        @hookimpl(optionalhook=True)
        def plaunch_quantum_state(self):
            pass

        @hookimpl(specname="plaunch_device_counts")
        def offer(self):
            return {"mine": lambda: 2}

    manager = plugin_manager(Modern())
    assert "Modern" in [plugin.name for plugin in manager.selected()]
    assert manager.get(DEVICE_COUNTS, "mine")() == 2


def test_static_and_class_methods_are_hooks_too_and_no_property_is_run() -> None:
    class Static:
        @property
        def explosive(self):
            raise AssertionError("run")

        @staticmethod
        @hookimpl
        def plaunch_device_counts():
            return {"mine": lambda: 2}

        @classmethod
        @hookimpl
        def plaunch_event_handlers(cls):
            return {"mine": cls}

    manager = plugin_manager(Static())
    assert manager.get(DEVICE_COUNTS, "mine")() == 2
    assert manager.get(EVENT_HANDLERS, "mine") is Static


def test_functions_of_other_modules_are_not_taken_for_forgotten_hooks(site) -> None:
    site.install(
        "acme",
        {COUNTS: {"one": "mod"}},
        tools="def plaunch_version(): return 1",
        mod="""
            import plaunch_devices
            from plaunch.plugin import hookimpl
            from tools import plaunch_version

            @hookimpl
            def plaunch_device_counts():
                return {"one": plaunch_version}
        """,
    )
    assert site.manager().get(DEVICE_COUNTS, "one")() == 1


def test_plugins_that_are_equal_are_two() -> None:
    class Equal:
        def __init__(self, name):
            self.name = name

        def __eq__(self, other):
            return True

        __hash__ = None

        @hookimpl
        def plaunch_device_counts(self):
            return {self.name: lambda: 1}

    names = plugin_manager(Equal("one"), Equal("two")).names(DEVICE_COUNTS)
    assert {"one", "two"} <= set(names)


def test_nothing_of_a_plugin_that_is_refused_is_called(site) -> None:
    """Not the hooks either that came before the one that does not fit."""
    site.install(
        "acme",
        {COUNTS: {"one": "mod"}},
        mod="""
            from plaunch.plugin import hookimpl

            @hookimpl
            def plaunch_device_counts():
                return {"one": lambda: 1}

            @hookimpl
            def plaunch_worker_env(no_such_argument):
                pass
        """,
    )
    manager = site.manager()
    with pytest.raises(PluginLoadError, match="no_such_argument"):
        manager.get(DEVICE_COUNTS, "one")
    assert "one" in manager.names(DEVICE_COUNTS)
    assert manager.implementations("plaunch_device_counts") == []
    assert manager.get(DEVICE_COUNTS, "cpu")
