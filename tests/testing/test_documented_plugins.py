"""The plugins of the documentation and the examples pass the suites of their kinds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from plaunch.plugin import KINDS, LIFECYCLE

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"(?:^<!-- file: (?P<file>\S+) -->\n+)?^```py(?:thon)?\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
# The arguments of plugins that need some.
GIVEN = {
    "acme.py": ([], {"ACME_NODES": "node0 node1", "ACME_PLACE": "1", "ACME_JOB": "4711"}),
    "numbered.py": (
        ["--nnodes=2", "--rdzv-endpoint=127.0.0.1:29400"],
        {"MY_NODE": "0", "MY_NODES": "2"},
    ),
}
# Plugins that are not examples to follow, and why.
LEFT_OUT = {
    "shout.py": "has a fault, which the page shows how to find",
    "trial.py": "names the backend of examples/plaunch-example-backend, whose tests are the suites",
}


def plugins_of_pages():
    """The code blocks that are plugins, by the name of the file; without those that test some."""
    found = {}
    pages = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/README.md")]
    for page in sorted(pages):
        for block in BLOCK.finditer(page.read_text()):
            if "hookimpl" in block["text"] and "plaunch.testing" not in block["text"]:
                name = block["file"]
                assert name, f"a plugin on {page.name} has no <!-- file: NAME -->"
                assert found.setdefault(name, block["text"]) == block["text"], name
    return found


def subjects(name, text):
    """Return the arguments of `--check-plugin` for a plugin: its names, and its other hooks."""
    hooks = set(re.findall(r"\b(plaunch_\w+)\(", text))
    for kind in KINDS:
        if kind.hook in hooks:
            hooks.remove(kind.hook)
            offer = re.search(rf'{kind.hook}\(.*?return {{"([\w-]+)": ', text, re.DOTALL)
            yield f"{kind.name}:{offer[1]}"
    if hooks:
        yield f"{LIFECYCLE.name}:{name}"


PLUGINS = {name: text for name, text in plugins_of_pages().items() if name not in LEFT_OUT}


def test_there_is_a_plugin_of_each_kind():
    assert set(LEFT_OUT) < set(plugins_of_pages())
    shown = [subject for name, text in PLUGINS.items() for subject in subjects(name, text)]
    assert {one.partition(":")[0] for one in shown} == {kind.name for kind in (LIFECYCLE, *KINDS)}


@pytest.mark.parametrize("file", PLUGINS)
def test_a_documented_plugin_passes(check, tmp_path, file):
    (tmp_path / file).write_text(PLUGINS[file])
    module = file.removesuffix(".py")
    argv, environ = GIVEN.get(file, ([], {}))
    for subject in subjects(module, PLUGINS[file]):
        done = check("-p", module, "--check-plugin", subject, *argv, **environ)
        assert done.returncode == 0, done.stdout + done.stderr


PACKAGES = [
    f"plaunch-example-{name}" for name in ("backend", "extension", "plugins", "podman")
]  # fmt: skip


@pytest.mark.parametrize("package", PACKAGES)
def test_the_tests_of_a_package_have_the_suites_of_its_kinds(package):
    suites = {
        "plaunch.rendezvous": "Rendezvous(Handler)?",
        "torchrun.logs_specs": "LogsSpecs",
        "plaunch.event_handlers": "EventHandler",
        "plaunch.device_counts": "DeviceCounter",
        "plaunch.signal_policies": "SignalPolicy",
        "plaunch.restart_policies": "RestartPolicy",
        "plaunch.health_checks": "HealthCheck",
        "plaunch.schedulers": "Scheduler",
        "plaunch.engines": "Engine",
        "plaunch.plugins": "Hooks",
        "plaunch.options": "Options",
    }
    folder = ROOT / "examples" / package
    project = (folder / "pyproject.toml").read_text()
    tests = "".join(path.read_text() for path in folder.glob("tests/*.py"))
    groups = re.findall(r'^\[project.entry-points."(.+)"\]$', project, re.MULTILINE)
    assert groups
    for group in groups:
        assert re.search(rf"\({suites[group]}Conformance\):", tests), group
