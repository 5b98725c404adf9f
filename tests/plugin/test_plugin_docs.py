"""docs/plugins.md says what is true: every kind, every hook, and its exact arguments."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from plaunch.plugin import hookspecs
from plaunch.plugin.context import PluginContext
from plaunch.plugin.registry import KINDS, LIFECYCLE
from plaunch.plugin.selection import AUTOLOAD_VARIABLE, PLUGINS_VARIABLE

PAGE = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text()


def test_every_hook_is_documented_with_exactly_its_arguments() -> None:
    documented = re.findall(r"^#### `(\w+)\((.*)\)`$", PAGE, re.MULTILINE)
    specified = [
        (name, ", ".join(inspect.signature(function).parameters))
        for name, function in vars(hookspecs).items()
        if name.startswith("plaunch_")
    ]
    assert documented == specified


def test_every_hook_has_a_text() -> None:
    sections = re.split(r"^#### ", PAGE, flags=re.MULTILINE)[1:]
    for section in sections:
        heading, _, text = section.partition("\n")
        for argument in re.findall(r"\w+", heading.partition("(")[2]):
            if argument != "group":  # explained once for all hooks that tell
                assert f"`{argument}`" in text, heading
        assert len(text.split()) > 10, heading


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
