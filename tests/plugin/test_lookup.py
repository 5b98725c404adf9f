"""Which plugin a name means: installed, blocked, passed in code, offered twice, or unknown."""

from __future__ import annotations

import sys

import pytest
from plaunch.errors import (
    DuplicateNameError,
    ExitCode,
    PluginError,
    PluginLoadError,
    UnknownNameError,
    UsageError,
)
from plaunch.plugin import hookimpl
from plaunch.plugin.kinds import (
    DEVICE_COUNTS,
    EVENT_HANDLERS,
    HEALTH_CHECKS,
    KINDS,
    LOGS_SPECS,
    RENDEZVOUS,
    RESTART_POLICIES,
    SCHEDULERS,
    SIGNAL_POLICIES,
)
from plaunch.testing import plugin_manager

from helpers.hooks import NO_OTHERS, plugin_of

COUNTS = "plaunch.device_counts"
LIFECYCLE_GROUP = "plaunch.plugins"
AUTOLOAD_OFF = {"PLAUNCH_DISABLE_PLUGIN_AUTOLOAD": "1"}
COUNTER = "def count(): return {}\n"
HOOKS = """
    from plaunch.plugin import hookimpl

    @hookimpl
    def plaunch_device_counts():
        return {offer}
"""


def counter(name: str, number: int):
    """A plugin that offers one device counter."""
    return plugin_of("Counters", plaunch_device_counts=lambda: {name: lambda: number})


def install_hooks(site, distribution: str, name: str, offer: str = "{}") -> None:
    """A distribution with a plugin of hooks, which offers these device counters."""
    module = f"mod_{name}"
    source = HOOKS.format(offer=offer)
    site.install(distribution, {LIFECYCLE_GROUP: {name: module}}, **{module: source})


# --- installed ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mine", "acme:mine"])
def test_a_name_in_an_unknown_group_is_explained(site, name) -> None:
    site.install("acme", {"plaunch.logs_spec": {"mine": "mod:Specs"}}, mod="1 / 0")
    fault = "'acme' lists it, but plaunch has no entry-point group 'plaunch.logs_spec'; did you"
    with pytest.raises(UnknownNameError, match=f"is unknown .*{fault}"):
        site.manager().get(LOGS_SPECS, name)
    with pytest.raises(UnknownNameError, match=f"neither an installed plugin .*{fault}"):
        site.manager(name)


def test_the_house_is_built_from_its_own_bricks() -> None:
    manager = plugin_manager()
    assert {kind.name: manager.names(kind) for kind in KINDS} == {
        "rendezvous": ["c10d", "etcd", "etcd-v2", "static"],
        "logs_specs": ["default"],
        "event_handlers": ["console", "jsonl", "null", "otel"],
        "device_counts": ["auto", "cpu", "gpu", "xpu"],
        "signal_policies": ["notify", "torchrun"],
        "restart_policies": ["always", "never", "standard"],
        "health_checks": ["command", "disk", "gpu", "memory", "network"],
        "schedulers": ["kubernetes", "mpi", "none", "slurm"],
        "engines": ["kubernetes", "local", "ray", "slurm", "ssh"],
    }
    for kind in KINDS:
        for name in manager.names(kind):
            assert callable(manager.get(kind, name))


def test_both_forms_of_every_kind(checked_in) -> None:
    manager = checked_in("plaunch_package")()
    assert manager.get(DEVICE_COUNTS, "acme")() == 3
    for kind, name in [
        (LOGS_SPECS, "AcmeLogsSpecs"),
        (EVENT_HANDLERS, "AcmeEventHandler"),
        (SIGNAL_POLICIES, "create_policy"),
        (RESTART_POLICIES, "create_restart_policy"),
        (HEALTH_CHECKS, "create_health_check"),
        (RENDEZVOUS, "create_handler"),
        (SCHEDULERS, "find_allocation"),
    ]:
        assert manager.get(kind, "acme").__name__ == name


def test_only_what_is_selected_is_imported(site) -> None:
    site.install("a", {COUNTS: {"one": "mod_one:count"}}, mod_one=COUNTER.format(1))
    site.install("b", {COUNTS: {"two": "mod_two:count"}}, mod_two=COUNTER.format(2))
    manager = site.manager()
    assert {"one", "two"} <= set(manager.names(DEVICE_COUNTS))
    assert not {"mod_one", "mod_two"} & sys.modules.keys()
    assert manager.get(DEVICE_COUNTS, "two")() == 2
    assert "mod_two" in sys.modules
    assert "mod_one" not in sys.modules


def test_selected_returns_what_was_loaded_and_from_where(site) -> None:
    site.install(
        "acme", {COUNTS: {"one": "mod_one:count [x]"}}, version="1.5", mod_one=COUNTER.format(1)
    )
    manager = site.manager(*NO_OTHERS)
    assert manager.selected() == []
    manager.get(DEVICE_COUNTS, "one")
    manager.get(DEVICE_COUNTS, "one")
    (loaded,) = manager.selected()
    assert (loaded.kind, loaded.name) == ("device_counts", "one")
    assert (loaded.distribution, loaded.version, loaded.module) == ("acme", "1.5", "mod_one")


def test_a_module_that_several_entry_points_name_is_one_plugin(site) -> None:
    site.install(
        "acme",
        {COUNTS: {"one": "both", "two": "both"}, LIFECYCLE_GROUP: {"acme": "both"}},
        both=HOOKS.format(offer='{"one": lambda: 1, "two": lambda: 2}'),
    )
    manager = site.manager(*NO_OTHERS)
    assert [manager.get(DEVICE_COUNTS, name)() for name in ("one", "two")] == [1, 2]
    assert [(p.kind, p.name) for p in manager.selected()] == [
        ("plugin", "acme"),
        ("device_counts", "one"),
        ("device_counts", "two"),
    ]


def test_a_class_of_hooks_is_instantiated_once_and_asked_once(site) -> None:
    site.install(
        "acme",
        {COUNTS: {"one": "mod:Counters", "two": "mod:Counters"}},
        mod="""
            from plaunch.plugin import hookimpl
            made, asked = [], []

            class Counters:
                def __init__(self):
                    made.append(self)

                @hookimpl
                def plaunch_device_counts(self):
                    asked.append(1)
                    return {"one": lambda: len(asked), "two": lambda: len(made)}
        """,
    )
    manager = site.manager()
    for _ in range(2):
        assert [manager.get(DEVICE_COUNTS, name)() for name in ("one", "two")] == [1, 1]
        manager.names(DEVICE_COUNTS)


# --- unknown --------------------------------------------------------------------------------------


def test_an_unknown_name_is_answered_with_the_choices() -> None:
    with pytest.raises(UnknownNameError) as caught:
        plugin_manager().get(DEVICE_COUNTS, "gpus")
    assert caught.value.exit_code == ExitCode.USAGE
    assert str(caught.value) == (
        "--nproc-per-node is 'gpus', which is neither a number nor the name of an installed "
        "device counter; did you mean 'gpu'? Choices: auto, cpu, gpu, xpu"
    )


@pytest.mark.parametrize(
    ("name", "end"),
    [("recordr", "slurm"), ("other", "you just added it")],
)
def test_reinstalling_is_for_a_name_that_is_like_no_other(site, name, end) -> None:
    site.install("acme", {"plaunch.schedulers": {"recorder": "mod"}}, mod="")
    with pytest.raises(UnknownNameError) as caught:
        site.manager().get(SCHEDULERS, name)
    assert str(caught.value).endswith(end)


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        (DEVICE_COUNTS, "acme:cpu", "is 'acme:cpu', which is neither a number nor"),
        (SIGNAL_POLICIES, "cpu", "signal policy 'cpu' is unknown"),  # a name of another kind
    ],
)
def test_a_name_of_another_kind_or_distribution_is_unknown(kind, name, message) -> None:
    with pytest.raises(UnknownNameError, match=message):
        plugin_manager().get(kind, name)


# --- twice ----------------------------------------------------------------------------------------


@pytest.fixture
def twice(site):
    """Two distributions that offer the same name."""
    site.install("beta", {COUNTS: {"one": "mod_b:count"}}, mod_b=COUNTER.format(2))
    site.install(
        "alpha", {COUNTS: {"one": "mod_a:count"}}, metadata_name="Alpha", mod_a=COUNTER.format(1)
    )
    return site


def test_two_distributions_with_one_name_are_an_error_when_it_is_selected(twice) -> None:
    manager = twice.manager()
    assert manager.get(DEVICE_COUNTS, "cpu")
    assert manager.names(DEVICE_COUNTS).count("one") == 1
    with pytest.raises(DuplicateNameError) as caught:
        manager.get(DEVICE_COUNTS, "one")
    assert caught.value.exit_code == ExitCode.USAGE
    assert str(caught.value) == (
        "device counter 'one' is offered by more than one distribution: Alpha, beta; write "
        "--nproc-per-node Alpha:one or beta:one, or block one with -p no:beta:one"
    )
    assert not {"mod_a", "mod_b"} & sys.modules.keys()


@pytest.mark.parametrize(
    ("words", "environ", "name", "expected"),
    [
        ([], {}, "alpha:one", 1),
        ([], {}, "ALPHA:one", 1),
        ([], {}, "beta:one", 2),
        (["no:alpha:one"], {}, "one", 2),
        (["alpha:one"], AUTOLOAD_OFF, "one", 1),
    ],
)
def test_the_distribution_decides(twice, words, environ, name, expected) -> None:
    assert twice.manager(*words, **environ).get(DEVICE_COUNTS, name)() == expected


def test_one_distribution_with_one_name_twice_is_an_error(site) -> None:
    site.install("acme", f"[{COUNTS}]\none = mod:a\none = mod:b\n", mod="")
    with pytest.raises(DuplicateNameError, match=r"more than once by distribution 'acme': mod:a"):
        site.manager().get(DEVICE_COUNTS, "one")


def test_the_same_line_twice_is_harmless(site) -> None:
    site.install("acme", f"[{COUNTS}]\none = mod:count\n" * 2, mod=COUNTER.format(1))
    assert site.manager().get(DEVICE_COUNTS, "one")() == 1


def test_our_own_group_is_preferred_to_torchruns(site) -> None:
    site.install(
        "acme",
        {"torchrun.handlers": {"x": "bad:nothing"}, "plaunch.rendezvous": {"x": "good:create"}},
        good="def create(params): return 'ours'",
    )
    assert site.manager().get(RENDEZVOUS, "x")(None) == "ours"


@pytest.fixture
def torch_too(site):
    """What torch lists as its default logs spec."""
    site.install(
        "torch",
        {"torchrun.logs_specs": {"default": "fake_torch:Specs"}},
        fake_torch="from plaunch.process import LogsSpecs\nclass Specs(LogsSpecs): pass\n",
    )
    return site


def test_plaunchs_default_logs_spec_has_priority_over_torchs(torch_too) -> None:
    manager = torch_too.manager()
    assert manager.get(LOGS_SPECS, "default").__name__ == "DefaultLogsSpecs"
    assert "fake_torch" not in sys.modules
    assert manager.get(LOGS_SPECS, "torch:default").__name__ == "Specs"


def test_a_third_default_does_not(torch_too) -> None:
    torch_too.install("acme", {"torchrun.logs_specs": {"default": "mod:Specs"}})
    with pytest.raises(DuplicateNameError, match="acme, plaunch"):
        torch_too.manager().get(LOGS_SPECS, "default")


def test_without_plaunchs_default_torchs_is_the_default(torch_too) -> None:
    manager = torch_too.manager("no:plaunch:default")
    assert manager.get(LOGS_SPECS, "default").__name__ == "Specs"


# --- blocked --------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["no:cpu", "no:device_counts:cpu", "no:plaunch:cpu"])
def test_the_error_of_a_blocked_name_names_the_blocker(word) -> None:
    manager = plugin_manager(words=[word])
    assert "cpu" not in manager.names(DEVICE_COUNTS)
    for name in ("cpu", "plaunch:cpu"):
        with pytest.raises(UsageError, match=rf"{name}.*is blocked by -p {word}") as caught:
            manager.get(DEVICE_COUNTS, name)
        assert not isinstance(caught.value, UnknownNameError)


def test_blocking_in_another_kind_or_distribution_changes_nothing() -> None:
    manager = plugin_manager(words=["no:rendezvous:cpu", "no:acme:cpu", "no:nothing"])
    assert manager.get(DEVICE_COUNTS, "cpu")


def test_the_environment_blocks_too() -> None:
    manager = plugin_manager(environ={"PLAUNCH_PLUGINS": "no:cpu"})
    with pytest.raises(UsageError, match=r"blocked by 'no:cpu' in PLAUNCH_PLUGINS"):
        manager.get(DEVICE_COUNTS, "cpu")


def test_a_blocked_plugin_is_not_imported(site) -> None:
    site.install("bad", {LIFECYCLE_GROUP: {"bad": "mod_bad"}}, mod_bad="raise SystemExit(3)")
    assert "bad" not in [plugin.name for plugin in site.manager("no:bad").selected()]
    assert "mod_bad" not in sys.modules


# --- automatic loading off ------------------------------------------------------------------------


def test_without_autoload_only_first_party_plugins_can_be_selected(twice) -> None:
    manager = twice.manager(**AUTOLOAD_OFF)
    assert manager.names(DEVICE_COUNTS) == ["auto", "cpu", "gpu", "xpu"]
    with pytest.raises(UnknownNameError) as caught:
        manager.get(DEVICE_COUNTS, "alpha:one")
    assert str(caught.value) == (
        "device counter 'alpha:one' (--nproc-per-node) of distribution 'Alpha' is not loaded, "
        "because PLAUNCH_DISABLE_PLUGIN_AUTOLOAD is set; add -p device_counts:one"
    )


def test_without_autoload_hooks_are_loaded_when_named(site) -> None:
    for name in ("one", "two"):
        install_hooks(site, name, name)
    manager = site.manager("two", **AUTOLOAD_OFF)
    assert [plugin.name for plugin in manager.selected()] == ["two"]
    assert "mod_one" not in sys.modules


def test_without_autoload_our_own_hooks_are_not_loaded_either(site) -> None:
    install_hooks(site, "plaunch", "ours")
    assert [plugin.name for plugin in site.manager().selected()] == ["ours"]
    assert site.manager(**AUTOLOAD_OFF).selected() == []


# --- named with -p --------------------------------------------------------------------------------


def test_naming_loads_at_once(site) -> None:
    site.install("acme", {COUNTS: {"one": "mod:count"}}, mod=COUNTER.format(1))
    manager = site.manager("device_counts:one", *NO_OTHERS)
    assert [plugin.name for plugin in manager.selected()] == ["one"]


def test_a_module_may_be_named(site) -> None:
    site.install("acme", "", some_module=HOOKS.format(offer='{"mine": lambda: 9}'))
    manager = site.manager("some_module", *NO_OTHERS)
    assert manager.get(DEVICE_COUNTS, "mine")() == 9
    (loaded,) = manager.selected()
    assert (loaded.kind, loaded.name, loaded.distribution) == ("plugin", "some_module", "")


def test_a_name_that_is_neither_plugin_nor_module(site) -> None:
    install_hooks(site, "acme", "recorder")
    with pytest.raises(UnknownNameError) as caught:
        site.manager("recordr")
    message = str(caught.value)
    assert message.startswith("-p recordr names neither an installed plugin nor a module; did you")
    assert "'recorder'" in message
    assert "reinstall" not in message


@pytest.mark.parametrize(
    ("word", "path", "name"),
    [
        ("greeter", "greeter.py", "greeter"),
        ("greeter.py", "greeter.py", "greeter"),
        ("./sub/greeter.py", "sub/greeter.py", "sub.greeter"),
        ("sub.greeter", "sub/greeter.py", "sub.greeter"),
        ("greeter", "greeter/__init__.py", "greeter"),
    ],
)
def test_a_module_in_the_working_folder_only_lacks_a_path(
    site, tmp_path, monkeypatch, word, path, name
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).write_text("")
    with pytest.raises(UnknownNameError) as caught:
        site.manager(word)
    message = str(caught.value)
    assert f"-p {word} names neither" in message
    assert path in message
    assert message.endswith(f"write PYTHONPATH=. before the command, and -p {name}")


@pytest.mark.parametrize("word", ["device_counts:nothing", "acme:nothing", "json:nothing"])
def test_a_kind_or_distribution_makes_no_module(word) -> None:
    with pytest.raises(UnknownNameError, match=f"-p {word} names neither"):
        plugin_manager(words=[word])


def test_a_module_that_is_broken_is_not_unknown(site) -> None:
    site.install("acme", "", broken_module="import nothing_like_this")
    with pytest.raises(PluginLoadError, match=r"'broken_module'.*ModuleNotFoundError") as caught:
        site.manager("broken_module")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_a_module_without_hooks_is_refused() -> None:
    with pytest.raises(PluginLoadError, match=r"'json' \(module json\) has no hooks"):
        plugin_manager(words=["json"])


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        (["no:one", "alpha:one"], UsageError, "-p alpha:one names a plugin that -p no:one blocks"),
        (["one"], DuplicateNameError, "Alpha, beta"),
    ],
)
def test_naming_what_is_blocked_or_offered_twice_is_an_error(twice, words, error, said) -> None:
    with pytest.raises(error, match=said):
        twice.manager(*words)


# --- always on ------------------------------------------------------------------------------------


def test_plugins_of_hooks_are_loaded_in_the_order_of_their_names(site) -> None:
    source = HOOKS.format(offer={})
    site.install("z", {LIFECYCLE_GROUP: {"beta": "mod_b", "delta": "mod_d"}}, mod_b=source)
    site.install("a", {LIFECYCLE_GROUP: {"gamma": "mod_c"}}, mod_c=source, mod_d=source)
    names = [plugin.name for plugin in site.manager().selected()]
    assert names == ["beta", "control", "delta", "gamma"]


def test_two_plugins_of_hooks_with_one_name_stop_the_launch(site) -> None:
    for name in ("alpha", "beta"):
        site.install(name, {LIFECYCLE_GROUP: {"recorder": f"mod_{name}"}})
    with pytest.raises(DuplicateNameError) as caught:
        site.manager()
    assert str(caught.value) == (
        "plugin 'recorder' is offered by more than one distribution: alpha, beta; block one with "
        "-p no:beta:recorder"
    )


def test_a_loaded_plugin_may_offer_more(site) -> None:
    install_hooks(site, "acme", "acme", '{"mine": lambda: 4}')
    manager = site.manager()
    assert "mine" in manager.names(DEVICE_COUNTS)
    assert manager.get(DEVICE_COUNTS, "mine")() == 4
    assert manager.get(DEVICE_COUNTS, "acme:mine")() == 4
    with pytest.raises(UsageError, match="blocked"):
        site.manager("no:mine").get(DEVICE_COUNTS, "mine")


def test_what_a_loaded_plugin_offers_counts_as_a_second_provider(site) -> None:
    install_hooks(site, "acme", "acme", '{"mine": lambda: 4}')
    site.install("beta", {COUNTS: {"mine": "mod_b:count"}}, mod_b=COUNTER.format(5))
    manager = site.manager()
    with pytest.raises(DuplicateNameError, match="acme, beta"):
        manager.get(DEVICE_COUNTS, "mine")
    assert manager.get(DEVICE_COUNTS, "beta:mine")() == 5


# --- passed in code -------------------------------------------------------------------------------


MINE = counter("mine", 7)


@pytest.mark.parametrize(
    ("plugins", "name"),
    [
        ([MINE], "mine"),
        ([type(MINE)], "mine"),
        ([MINE, MINE], "mine"),
        ([counter("cpu", 7)], "cpu"),  # it comes before what is installed
    ],
    ids=["an object", "a class", "one that is passed twice", "a name that is taken"],
)
def test_a_plugin_in_code_needs_no_metadata(plugins, name) -> None:
    manager = plugin_manager(*plugins)
    assert name in manager.names(DEVICE_COUNTS)
    assert manager.get(DEVICE_COUNTS, name)() == 7


def test_a_plugin_in_code_comes_before_one_that_is_broken(site) -> None:
    install_hooks(site, "acme", "acme", "1 / 0")
    manager = site.manager(plugins=(MINE,))
    assert manager.get(DEVICE_COUNTS, "mine")() == 7


def test_two_plugins_in_code_with_one_name_are_an_error() -> None:
    manager = plugin_manager(counter("mine", 1), counter("mine", 2))
    with pytest.raises(DuplicateNameError, match=r"'mine' .* is offered by plugin 'Counters'"):
        manager.get(DEVICE_COUNTS, "mine")


@pytest.mark.parametrize("word", ["no:mine", "no:device_counts:mine", "no:Counters"])
def test_blocking_holds_for_plugins_in_code(word) -> None:
    manager = plugin_manager(MINE, words=[word])
    assert "mine" not in manager.names(DEVICE_COUNTS)
    with pytest.raises(UsageError):
        manager.get(DEVICE_COUNTS, "mine")


def test_what_has_no_hooks_is_no_plugin() -> None:
    with pytest.raises(PluginLoadError, match=r"passed in code, has no hooks.*plaunch\.hookimpl"):
        plugin_manager(object())


def test_a_class_in_code_that_cannot_be_created() -> None:
    class Picky:
        def __init__(self, wanted):
            pass

        @hookimpl
        def plaunch_device_counts(self):
            return {}

    with pytest.raises(PluginLoadError, match=r"'Picky'.*cannot be created: TypeError.*wanted"):
        plugin_manager(Picky)


@pytest.mark.parametrize(
    ("offer", "problem"),
    [
        (lambda: 1 // 0, "ZeroDivisionError: "),
        (lambda: None, "returned .* from plaunch_device_counts"),
        (lambda: ["mine"], "returned .* from plaunch_device_counts"),
        (lambda: {1: len}, "returned .* from plaunch_device_counts"),
    ],
)
def test_an_offer_that_is_no_mapping_of_names_is_its_plugins_fault(offer, problem) -> None:
    with pytest.raises(PluginError, match=rf"'Odd'.*{problem}"):
        plugin_manager(plugin_of("Odd", plaunch_device_counts=offer)).get(DEVICE_COUNTS, "cpu")


def test_managers_share_nothing() -> None:
    plugin_manager(MINE)
    assert "mine" not in plugin_manager().names(DEVICE_COUNTS)
