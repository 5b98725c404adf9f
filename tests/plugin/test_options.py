"""What the user selects: plugins, and the options that plugins declare."""

from __future__ import annotations

import sys
import types

import pytest
from plaunch.errors import PluginLoadError, UsageError
from plaunch.options import Option, integer
from plaunch.plugin import create_extensions
from plaunch.plugin.context import PluginContext
from plaunch.plugin.hookspecs import hookimpl
from plaunch.plugin.kinds import DEVICE_COUNTS
from plaunch.plugin.manager import PluginManager
from plaunch.plugin.metadata import Distribution, EntryPoint
from plaunch.plugin.options import (
    Installed,
    PluginOptions,
    Selection,
    Word,
    load_options,
    resolve_options,
)

LEVEL = Option(("--acme-level",), "how much", 1, "N", integer, variables=("ACME_LEVEL",))
WORD = Option(("--acme-word",), "which")


@pytest.fixture
def module(monkeypatch):
    """Make a module of attributes; returns its name."""

    def make(name="acme_options", **attributes):
        made = types.ModuleType(name)
        vars(made).update(attributes)
        monkeypatch.setitem(sys.modules, name, made)
        return name

    return make


def entry(value, name="acme", distribution="acme"):
    return EntryPoint("plaunch.options", name, value, Distribution(distribution, "Acme", "1.0"))


def test_what_a_module_declares(module):
    name = module(OPTIONS=(LEVEL,), PLUGIN="acme.plugin", AFTER_FAILURE="acme.plugin:Collect")
    found = load_options(entry(name))
    assert found == ("acme", "Acme 1.0", (LEVEL,), "acme.plugin", sys.modules[name], name)
    assert found.declared("AFTER_FAILURE") == "acme.plugin:Collect"
    assert found.declared("ON_SLOW_STOP") is None
    assert (found.who, found.package) == ("plugin 'acme' (Acme 1.0)", name)


def test_an_object_may_declare_them_too(module):
    holder = types.SimpleNamespace(OPTIONS=[LEVEL])
    assert load_options(entry(module(holder=holder) + ":holder")).plugin == ""


@pytest.mark.parametrize(
    ("attributes", "problem"),
    [
        ({}, "AttributeError"),
        ({"OPTIONS": ["--acme"]}, "'--acme' in OPTIONS is not a plaunch.options.Option"),
        ({"OPTIONS": [Option(("-a", "--acme"), "")]}, r"\['-a'\] are not option names"),
        ({"OPTIONS": [Option(("--Acme",), "")]}, r"\['--Acme'\] are not option names"),
        ({"OPTIONS": [], "PLUGIN": 3}, "PLUGIN is 3"),
    ],
)
def test_what_declares_no_options(module, attributes, problem):
    with pytest.raises(PluginLoadError, match=problem):
        load_options(entry(module(**attributes)))


@pytest.mark.parametrize("value", ["no_such_module", "a b c", "acme_options:nothing"])
def test_a_broken_module_costs_its_own_options_only(module, value):
    good = entry(module(OPTIONS=(LEVEL,)), "good")
    found, problems = Installed([entry(value, "bad"), good], Selection((), {})).options()
    assert [one.name for one in found] == ["good"]
    (problem,) = problems
    assert problem.startswith("the options of plugin 'bad' (Acme 1.0) cannot be used: ")


@pytest.mark.parametrize(
    ("words", "environ", "distribution", "there"),
    [
        ((), {}, "acme", True),
        (("no:acme",), {}, "acme", False),
        (("no:options:acme",), {}, "acme", False),
        (("no:other",), {}, "acme", True),
        ((), {"PLAUNCH_PLUGINS": "no:acme"}, "acme", False),
        ((), {"PLAUNCH_DISABLE_PLUGIN_AUTOLOAD": "1"}, "acme", False),
        (("acme",), {"PLAUNCH_DISABLE_PLUGIN_AUTOLOAD": "1"}, "acme", True),
        ((), {"PLAUNCH_DISABLE_PLUGIN_AUTOLOAD": "1"}, "plaunch", True),
    ],
)
def test_whose_options_there_are(module, words, environ, distribution, there):
    given = entry(module(OPTIONS=(LEVEL,)), distribution=distribution)
    found, _ = Installed([given], Selection(words, environ)).options()
    assert bool(found) is there


ACME = PluginOptions("acme", "Acme 1.0", (LEVEL, WORD), "acme_plugin")


@pytest.mark.parametrize(
    ("values", "environ", "resolved"),
    [
        ({}, {}, {}),
        ({"acme_word": "x"}, {}, {"acme": {"acme_level": 1, "acme_word": "x"}}),
        ({"acme_level": 7}, {}, {"acme": {"acme_level": 7, "acme_word": None}}),
        ({"acme_level": "7"}, {}, {"acme": {"acme_level": 7, "acme_word": None}}),
        ({}, {"ACME_LEVEL": "7"}, {"acme": {"acme_level": 7, "acme_word": None}}),
        ({"acme_level": 2}, {"ACME_LEVEL": "7"}, {"acme": {"acme_level": 2, "acme_word": None}}),
    ],
)
def test_values_that_are_given_in_code(values, environ, resolved):
    assert resolve_options([ACME], values, environ) == resolved


@pytest.mark.parametrize(
    ("values", "environ", "message"),
    [
        ({"acme_levl": 1}, {}, "no plugin has an option 'acme_levl'; did you mean 'acme_level'"),
        ({"acme_level": "x"}, {}, "option 'acme_level' of plugin 'acme': 'x' is not a whole"),
        ({}, {"ACME_LEVEL": "x"}, "variable ACME_LEVEL: 'x' is not a whole"),
    ],
)
def test_values_that_are_none(values, environ, message):
    with pytest.raises(UsageError, match=message):
        resolve_options([ACME], values, environ)


class Recorded:
    """Records the contexts that its hook gets; has no extension."""

    def __init__(self):
        self.contexts = []

    @hookimpl
    def plaunch_extensions(self, context):
        self.contexts.append(context)


def manager_with(module, *words, plugin="acme_plugin:PLUGIN"):
    recorded = Recorded()
    if plugin:
        module("acme_plugin", PLUGIN=recorded)
    entries = [entry(module(OPTIONS=(LEVEL, WORD), PLUGIN=plugin))]
    return PluginManager.create(words=words, environ={}, entries=entries), recorded


def test_a_plugin_is_loaded_when_one_of_its_options_is_given(module):
    manager, recorded = manager_with(module)
    context = PluginContext("job", "role", "host")
    manager.use_options({}, {})
    assert create_extensions(manager, context) == []
    assert (manager.selected(), recorded.contexts) == ([], [])
    manager.use_options({"acme_word": "x"}, {})
    create_extensions(manager, context)
    (seen,) = recorded.contexts
    assert seen.options == {"acme_level": 1, "acme_word": "x"}
    assert seen.run_id == "job"
    (loaded,) = manager.selected()
    assert (loaded.kind, loaded.name, loaded.module) == ("options", "acme", "acme_plugin")


def test_a_setting_loads_the_plugin_that_names_it(module):
    module("acme_plugin", PLUGIN=Recorded())
    name = module(OPTIONS=(), PLUGIN="acme_plugin:PLUGIN", SETTINGS=("devices", "numa_options"))
    manager = PluginManager.create(environ={}, entries=[entry(name)])
    manager.use_settings({"devices": None, "numa_options": False, "role": "trainer"})
    assert manager.selected() == []
    manager.use_settings({"devices": ["0"]})
    assert [loaded.name for loaded in manager.selected()] == ["acme"]


def test_a_plugin_that_is_named_is_loaded_without_options(module):
    manager, _ = manager_with(module, "acme")
    assert [loaded.name for loaded in manager.selected()] == ["acme"]


def test_a_plugin_that_cannot_be_loaded_is_named(module):
    manager, _ = manager_with(module, plugin="acme_nothing")
    with pytest.raises(PluginLoadError, match=r"'acme' \(distribution Acme 1.0, module acme_noth"):
        manager.use_options({"acme_word": "x"}, {})


@pytest.mark.parametrize("attributes", [{}, {"OPTIONS": ["--acme"]}])
def test_a_plugin_that_is_named_and_has_broken_options_cannot_be_loaded(module, attributes):
    entries = [entry(module(**attributes))]
    with pytest.raises(
        PluginLoadError, match=r"^the options of plugin 'acme' \(Acme 1.0\) cannot be"
    ):
        PluginManager.create(words=["acme"], environ={}, entries=entries)


@pytest.mark.parametrize("group", ["plaunch.plugins", "plaunch.device_counts"])
def test_values_reach_a_plugin_that_is_loaded_under_another_name_as_well(module, group):
    class Hooks(Recorded):
        @hookimpl
        def plaunch_device_counts(self):
            return {"other": lambda: 1}

    recorded = Hooks()
    value = module("acme_plugin", PLUGIN=recorded) + ":PLUGIN"
    other = EntryPoint(group, "other", value, Distribution("acme", "Acme", "1.0"))
    entries = [other, entry(module(OPTIONS=(LEVEL, WORD), PLUGIN=value))]
    manager = PluginManager.create(environ={}, entries=entries)
    if group == "plaunch.device_counts":
        manager.get(DEVICE_COUNTS, "other")
    manager.use_options({"acme_word": "x"}, {})
    create_extensions(manager, PluginContext("job", "role", "host"))
    (seen,) = recorded.contexts
    assert seen.options == {"acme_level": 1, "acme_word": "x"}


# --- which plugins --------------------------------------------------------------------------------


def said(*arguments: str, **environ: str) -> tuple[list[str], list[str]]:
    words = Selection(arguments, environ)
    return [word.text for word in words.loads], [word.text for word in words.blocks]


@pytest.mark.parametrize(
    ("text", "expected"),
    {
        "x": True,
        "rendezvous:x": True,
        "plugin:x": False,
        "acme-dist:x": True,
        "Acme.Dist:x": True,
        "other:x": False,
        "y": False,
        "x:x": False,
        "rendezvous:y": False,
    }.items(),
)
def test_a_word_means_a_name_or_a_name_of_a_kind_or_distribution(text, expected) -> None:
    assert Word(text, "-p").means("rendezvous", "x", "acme_dist") is expected


def test_a_word_with_a_distribution_means_nothing_that_is_not_installed() -> None:
    assert not Word("acme:x", "-p").means("plugin", "x")


SAID = {
    "nothing": ((), {}, ([], [])),
    "arguments": (("a", "no:b"), {}, (["a"], ["b"])),
    "the variable": ((), {"PLAUNCH_PLUGINS": "a,no:b  c, no:d,"}, (["a", "c"], ["b", "d"])),
    "the variable, empty": ((), {"PLAUNCH_PLUGINS": " , "}, ([], [])),
    "the last one counts": (("a", "no:a"), {}, ([], ["a"])),
    "the last one counts, loading": (("no:a", "a"), {}, (["a"], [])),
    "arguments overrule the variable": (("a",), {"PLAUNCH_PLUGINS": "no:a"}, (["a"], [])),
    "other forms are other words": (("plugin:a", "no:a"), {}, (["plugin:a"], ["a"])),
    "once is enough": (("a", "a"), {"PLAUNCH_PLUGINS": "a"}, (["a"], [])),
    "spaces around": ((" a ",), {}, (["a"], [])),
}


@pytest.mark.parametrize(("arguments", "environ", "expected"), SAID.values(), ids=SAID)
def test_words(arguments, environ, expected) -> None:
    assert said(*arguments, **environ) == expected


@pytest.mark.parametrize("argument", ["", "no:", "  "])
def test_an_empty_word_is_an_error(argument) -> None:
    with pytest.raises(UsageError, match=r"names no plugin; write -p NAME or -p no:NAME"):
        said(argument)


@pytest.mark.parametrize(
    ("value", "expected"), [(None, True), ("", True), ("0", True), ("1", False), ("yes", False)]
)
def test_autoload(value, expected) -> None:
    environ = {} if value is None else {"PLAUNCH_DISABLE_PLUGIN_AUTOLOAD": value}
    assert Selection((), environ).autoload is expected


def test_a_blocker_names_its_source() -> None:
    words = Selection(["no:x"], {"PLAUNCH_PLUGINS": "no:y"})
    assert words.blocker("rendezvous", "x") == "-p no:x"
    assert words.blocker("rendezvous", "y") == "'no:y' in PLAUNCH_PLUGINS"
    assert words.blocker("rendezvous", "z") == ""
