"""The plugin API is what its snapshot says, unless the changelog says otherwise."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from helpers.programs import run_python

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def api():
    spec = importlib.util.spec_from_file_location("plugin_api", HERE / "plugin_api.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def changelog(text):
    return (
        "# Changelog\n\n## Unreleased\n\n### Added\n\n- `Added`\n\n### Plugin API\n\n"
        f"{text}\n\n## 0.1.0\n\n### Plugin API\n\n- `Older` is new.\n"
    )


def test_what_has_changed_is_in_the_changelog(api):
    missing = api.unnamed(api.differences(), api.CHANGELOG.read_text())
    assert not missing, (
        'docs/changelog.md must name these under "Plugin API" of the unreleased version; then run '
        f"{api.COMMAND}"
    )


@pytest.mark.parametrize(
    "line",
    [
        "plaunch.rendezvous.RendezvousHandler.leave(self) -> 'bool'",
        "plaunch.plugin.PluginContext.options: Mapping[str, Any]",
        "plaunch.plugin.hookspecs.plaunch_worker_env(worker: 'WorkerInfo', env: "
        "'Mapping[str, str]') -> 'Mapping[str, str] | None'",
        "class plaunch_testing.conformance.EventHandlerConformance(PluginSuite)",
        "plaunch.process.SignalAction.NOTIFY = 'notify'",
        "property plaunch.process.LogsSpecs.root_log_dir -> str | None",
        "plaunch.scheduling.Allocation.run_id: str",
        "class plaunch.doctor.Finding()",
        "plaunch.process.Std.ALL = 3",
    ],
)
def test_what_is_in_the_api(api, line):
    assert line in api.lines()


def test_tests_of_the_suites_are_not_in_it(api):
    assert not [line for line in api.lines() if ".test_" in line]
    assert [line for line in api.lines() if line.startswith("plaunch_testing.conformance.")]


def test_nothing_private_is_in_it(api):
    paths = [line.partition("(")[0] for line in api.lines()]
    assert not [path for path in paths if "._" in path.split(":")[0].split(" = ")[0]]


@pytest.mark.parametrize(
    ("text", "is_named"),
    [
        ("- `Event` has a new field.", True),
        ("- `plaunch.events.Event.version` is new.", True),
        ("- `Event(version=1)`", True),
        ("- Event has a new field.", False),
        ("- `EventHandler` has a new method.", False),
        ("- `Older`", False),
    ],
)
def test_a_change_must_be_named(api, text, is_named):
    change = "+ plaunch.events.Event.version: int"
    assert api.unnamed([change], changelog(text)) == ([] if is_named else [change])


@pytest.mark.parametrize("name", ["Older", "Added"])
def test_other_sections_do_not_count(api, name):
    change = f"- plaunch.events.{name}.field: int"
    assert api.unnamed([change], changelog("")) == [change]
    assert api.unnamed([change], "# Changelog\n") == [change]


def test_a_changed_signature_is_a_difference(api, tmp_path, monkeypatch):
    known = api.lines()
    old = next(line for line in known if line.startswith("plaunch.testing.plugin_manager("))
    monkeypatch.setattr(api, "SNAPSHOT", tmp_path / "api.txt")
    api.SNAPSHOT.write_text("\n".join([*(line for line in known if line != old), "gone.by.now"]))
    assert api.differences() == ["- gone.by.now", f"+ {old}"]


def test_it_is_the_same_in_every_process(api):
    code = (
        "import runpy, sys; "
        f"print(*runpy.run_path({str(HERE / 'plugin_api.py')!r})['lines'](), sep='\\n')"
    )
    shown = run_python("-c", code, check=True)
    assert shown.stdout.splitlines() == api.lines()
