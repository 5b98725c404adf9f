"""The list of plugins, which reports broken plugins and survives them."""

from __future__ import annotations

import sys
from itertools import groupby

import pytest
from plaunch.errors import UsageError
from plaunch.plugin import hookimpl
from plaunch_doctor.listing import PluginStatus, format_plugins, list_plugins

COUNTS = "plaunch.device_counts"
LIFECYCLE_GROUP = "plaunch.plugins"
GOOD = "def count(): return 1\n"
HOOK = "import plaunch\n@plaunch.hookimpl\ndef plaunch_worker_env(): pass\n"


def listed(site, *words: str, plugins=(), **environ: str) -> dict[str, PluginStatus]:
    """The rows of third-party plugins, by `distribution:name`."""
    rows = list_plugins(plugins, words=words, environ=environ, path=site.path)
    return {f"{r.distribution}:{r.name}": r for r in rows if r.distribution != "plaunch"}


def test_first_party_plugins_are_ready(site) -> None:
    rows = list_plugins(environ={}, path=site.path)
    kinds = [(kind, [row.name for row in of]) for kind, of in groupby(rows, lambda row: row.kind)]
    options = (
        "chaos completion devices doctor dry_run engines events failure_bundle hang logs_default"
    )
    more = "preload restarts schedulers settings_file signals stacks status testing timer"
    assert kinds == [
        ("plugin", ["control"]),
        ("options", [*options.split(), *more.split(), "worker_store"]),
        ("rendezvous", ["c10d", "etcd", "etcd-v2", "static"]),
        ("logs_specs", ["default"]),
        ("event_handlers", ["console", "jsonl", "null", "otel"]),
        ("device_counts", ["auto", "cpu", "gpu", "xpu"]),
        ("signal_policies", ["notify", "torchrun"]),
        ("restart_policies", ["always", "never", "standard"]),
        ("health_checks", ["command", "disk", "gpu", "memory", "network"]),
        ("schedulers", ["kubernetes", "mpi", "none", "slurm"]),
        ("engines", ["kubernetes", "local", "ray", "slurm", "ssh"]),
    ]
    assert {(row.distribution, row.status, row.detail, row.rivals) for row in rows} == {
        ("plaunch", "ready", "", ())
    }
    hooks = "chaos devices failure_bundle hang logs_default preload stacks status timer"
    assert [row.name for row in rows if row.has_hooks] == [*hooks.split(), "worker_store"]


COUNTERS = """\
from plaunch import hookimpl
class Counters:
    @hookimpl
    def plaunch_device_counts(self): {}
count = Counters()
"""
BROKEN = {
    "an import error": ("import no_such_package", "ModuleNotFoundError: No module named"),
    "an exit": ("raise SystemExit(1)", "SystemExit: 1"),
    "an exception beside the usual": (
        "class Odd(BaseException): pass\nraise Odd('far out')",
        "Odd: far out",
    ),
    "a missing attribute": ("", "AttributeError: module 'mod_bad' has no attribute"),
    "something else": ("count = 3", "cannot be called"),
    "another name": (COUNTERS.format("return {'other': len}"), "it offers 'other'"),
    "a failing hook": (COUNTERS.format("raise KeyError('x')"), "KeyError: 'x'"),
}


@pytest.mark.parametrize(("source", "detail"), BROKEN.values(), ids=BROKEN)
def test_a_broken_plugin_is_listed_with_its_cause(site, source, detail) -> None:
    site.install("bad", {COUNTS: {"bad": "mod_bad:count"}}, mod_bad=source)
    site.install("good", {COUNTS: {"good": "mod_good:count"}}, version="2.0", mod_good=GOOD)
    rows = listed(site)
    assert rows["bad:bad"].status == "broken"
    assert detail in rows["bad:bad"].detail
    assert rows["good:good"] == PluginStatus("device_counts", "good", "good", "2.0")


def test_a_broken_lifecycle_plugin_does_not_break_the_others(site) -> None:
    site.install("bad", {LIFECYCLE_GROUP: {"bad": "mod_bad"}}, mod_bad="1 / 0")
    site.install("good", {LIFECYCLE_GROUP: {"good": "mod_good"}}, mod_good=HOOK)
    rows = listed(site)
    assert (rows["bad:bad"].kind, rows["bad:bad"].status) == ("plugin", "broken")
    assert rows["bad:bad"].detail == "ZeroDivisionError: division by zero"
    assert rows["good:good"].status == "ready"


def test_an_unknown_group_is_listed(site) -> None:
    site.install("acme", {"plaunch.logs_spec": {"mine": "mod:Specs"}}, version="2.0", mod="1 / 0")
    row = listed(site)["acme:mine"]
    assert (row.kind, row.version, row.status) == ("plaunch.logs_spec", "2.0", "broken")
    assert row.detail == (
        "plaunch has no entry-point group 'plaunch.logs_spec'; did you mean 'plaunch.logs_specs'?"
    )


def test_logs_specs_of_both_groups(site) -> None:
    source = "from plaunch_logs_default import DefaultLogsSpecs as Specs"
    for group in ("plaunch", "torchrun"):
        entries = {f"{group}.logs_specs": {f"of_{group}": f"mod_{group}:Specs"}}
        site.install(group[::-1], entries, **{f"mod_{group}": source})
    rows = listed(site)
    found = {(row.kind, row.name, row.status) for row in rows.values()}
    assert found == {("logs_specs", f"of_{each}", "ready") for each in ("plaunch", "torchrun")}


def test_an_interrupted_list_is_not_a_broken_plugin(site) -> None:
    site.install("bad", {COUNTS: {"bad": "mod_bad:count"}}, mod_bad="raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        listed(site)


def test_blocked_plugins_are_listed_but_not_imported(site) -> None:
    site.install("acme", {COUNTS: {"one": "mod:count"}}, mod="raise SystemExit")
    row = listed(site, "no:one")["acme:one"]
    assert (row.status, row.detail) == ("blocked", "by -p no:one")
    row = listed(site, PLAUNCH_DISABLE_PLUGIN_AUTOLOAD="1")["acme:one"]
    assert (row.status, row.detail) == ("blocked", "by PLAUNCH_DISABLE_PLUGIN_AUTOLOAD")
    assert "mod" not in sys.modules


def test_names_of_several_distributions_are_marked(site) -> None:
    for name in ("alpha", "beta"):
        site.install(name, {COUNTS: {"one": f"mod_{name}:count"}}, **{f"mod_{name}": GOOD})
    rows = listed(site)
    assert rows["alpha:one"].rivals == ("beta",)
    assert rows["beta:one"].rivals == ("alpha",)
    assert rows["beta:one"].status == "ready"
    assert listed(site, "no:alpha:one")["beta:one"].rivals == ()


def test_lifecycle_plugins_with_the_same_name_are_marked(site) -> None:
    for name in ("alpha", "beta"):
        site.install(name, {LIFECYCLE_GROUP: {"one": f"mod_{name}"}}, **{f"mod_{name}": HOOK})
    assert {row.rivals for row in listed(site).values()} == {("alpha",), ("beta",)}


def test_torchs_default_is_shadowed_and_not_imported(site) -> None:
    site.install(
        "torch",
        {"torchrun.logs_specs": {"default": "fake:Specs"}},
        fake="raise AssertionError('imported')\n",
    )
    rows = list_plugins(environ={}, path=site.path)
    defaults = {row.distribution: row for row in rows if row.name == "default"}
    assert defaults["plaunch"].status == "ready"
    assert defaults["torch"].status == "shadowed"
    table = format_plugins(rows)
    assert "shadowed by plaunch; select it as torch:default" in table


class CodePlugin:
    @hookimpl
    def plaunch_device_counts(self):
        return {"mine": lambda: 1}


def test_plugins_in_code_are_listed_with_their_names(site) -> None:
    rows = listed(site, plugins=[CodePlugin()])
    assert rows["-:CodePlugin"] == PluginStatus("plugin", "CodePlugin", "-", "-")
    assert rows["-:mine"].kind == "device_counts"


def test_a_word_for_another_plugin_does_not_affect_a_plugin_in_code(site) -> None:
    site.install("acme", {COUNTS: {"one": "mod:count"}}, mod=GOOD)
    rows = listed(site, "one", "no:device_counts:mine", plugins=[CodePlugin()])
    assert rows["-:CodePlugin"].status == "ready"
    assert "-:mine" not in rows


def test_a_blocked_plugin_in_code_is_listed_as_such(site) -> None:
    row = listed(site, "no:CodePlugin", plugins=[CodePlugin()])["-:CodePlugin"]
    assert (row.status, row.detail) == ("blocked", "by -p no:CodePlugin")


def test_a_broken_plugin_in_code_is_listed(site) -> None:
    row = listed(site, plugins=[object()])["-:object"]
    assert row.status == "broken"


def test_a_module_named_with_p_is_listed(site) -> None:
    site.install(
        "acme",
        "",
        some_module="""
            import plaunch
            @plaunch.hookimpl
            def plaunch_device_counts(): return {'x': len}
        """,
    )
    rows = listed(site, "some_module")
    assert rows["-:some_module"].status == "ready"
    assert rows["-:x"].kind == "device_counts"


@pytest.mark.parametrize("word", ["no_such_plugin", "acme:no_such_plugin"])
def test_an_unknown_word_is_listed_as_broken(site, word) -> None:
    row = listed(site, word)[f"-:{word}"]
    assert row.status == "broken"
    assert "names neither an installed plugin nor a module" in row.detail


def test_an_empty_word_is_a_usage_error(site) -> None:
    with pytest.raises(UsageError):
        listed(site, "no:")


def test_the_table() -> None:
    assert format_plugins(
        [
            PluginStatus("rendezvous", "static", "plaunch", "0.1.0"),
            PluginStatus("plugin", "x", "a", "-", "blocked", "by -p no:x"),
            PluginStatus("options", "o", "a", "-", has_hooks=True),
            PluginStatus("device_counts", "y", "acme", "1", "broken", "OSError: z"),
            PluginStatus("device_counts", "z", "acme", "1", rivals=("beta", "gamma")),
        ]
    ).splitlines() == [
        "KIND           NAME    DISTRIBUTION  VERSION  STATUS",
        "rendezvous     static  plaunch       0.1.0    ready",
        "plugin         x       a             -        blocked by -p no:x",
        "options+hooks  o       a             -        ready",
        "device_counts  y       acme          1        broken: OSError: z",
        "device_counts  z       acme          1        ready (name also in beta, gamma; "
        "this one is acme:z)",
    ]
