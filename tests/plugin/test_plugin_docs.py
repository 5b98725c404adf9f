"""docs/plugins.md says what is true: every kind, every hook, and its exact arguments."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import plaunch_network
import pytest
from plaunch.agent import Snapshot
from plaunch.plugin import hookspecs
from plaunch.plugin.context import PluginContext
from plaunch.plugin.kinds import KINDS, LIFECYCLE
from plaunch.plugin.options import AUTOLOAD_VARIABLE, PLUGINS_VARIABLE

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "plugins.md").read_text()
GROUPS = {
    "Offer hooks": "offer",
    "Contribution hooks": "contribute",
    "Notification hooks": "notification",
}


def test_every_hook_is_documented_with_exactly_its_arguments() -> None:
    documented = re.findall(r"^\| `(\w+)\((.*)\)` \|", PAGE, re.MULTILINE)
    specified = [
        (name, ", ".join(inspect.signature(function).parameters))
        for name, function in vars(hookspecs).items()
        if name.startswith("plaunch_")
    ]
    assert documented == specified


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_is_documented_with_its_groups_and_option(kind) -> None:
    groups = ", ".join(f"`{group}`" for group in kind.groups)
    assert f"| `{kind.name}` | {groups} | `{kind.flag}` |" in PAGE


@pytest.mark.parametrize("name", [*LIFECYCLE.groups, AUTOLOAD_VARIABLE, PLUGINS_VARIABLE])
def test_groups_and_variables_are_documented(name) -> None:
    assert f"`{name}" in PAGE


@pytest.mark.parametrize("field", PluginContext.__dataclass_fields__)
def test_the_context_is_documented(field) -> None:
    assert f"`{field}`" in PAGE


def test_links_within_the_page_lead_somewhere() -> None:
    headings = re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}
    links = re.findall(r"\]\(#(.+?)\)", PAGE)
    assert links
    assert set(links) <= anchors


def test_the_example_of_a_unit_test_runs() -> None:
    (example,) = re.findall(r"```python\n(import plaunch\nfrom .*?)```", PAGE, re.DOTALL)
    exec(compile(example, "docs/plugins.md", "exec"), {"__name__": "example"})


def test_both_pages_have_each_hook_in_the_same_group() -> None:
    listed = dict(re.findall(r"^\| `(\w+)\(.*\)` \| (\w+) \|", PAGE, re.MULTILINE))
    found = {}
    for part in (DOCS / "hooks.md").read_text().split("\n## ")[1:]:
        hooks = re.findall(r"^### `(\w+)`", part, re.MULTILINE)
        found |= dict.fromkeys(hooks, GROUPS[part.partition("\n")[0]])
    assert found == listed


def test_the_fields_of_a_snapshot_are_documented_with_their_types() -> None:
    page = (DOCS / "writing-plugins.md").read_text()
    section = page.partition("### The snapshot")[2].partition("\n## ")[0]
    fields = [(field.name, field.type) for field in dataclasses.fields(Snapshot)]
    rows = re.findall(r"^\| `(\w+)` \| `(.+?)` \|", section, re.MULTILINE)
    assert [(name, type_.replace("\\|", "|")) for name, type_ in rows] == fields


def test_what_helps_with_addresses_is_documented_with_its_signature() -> None:
    page = (DOCS / "writing-a-backend.md").read_text()
    section = page.partition("The library `plaunch_network` helps")[2].partition("\nThe factory")[0]
    written = re.findall(r"^\| `([\w.]+)(\(.*)` \|", section, re.MULTILINE)
    assert len(written) == 5
    for name, signature in written:
        thing = plaunch_network
        for part in name.split("."):
            thing = getattr(thing, part)
        real = re.sub(r"(: |-> )'([^']+)'", r"\1\2", str(inspect.signature(thing)))
        assert signature.replace("\\|", "|") == real


def test_options_of_a_plugin_are_keys_of_a_mapping() -> None:
    context = PluginContext("job", "role", "host", options={"acme_level": 2})
    page = (DOCS / "writing-plugins.md").read_text()
    (written,) = re.findall(r"`(context\.options\[.acme_level.\])`", page)
    assert eval(written, {"context": context}) == 2
