"""docs/reliability.md, the result files and the promises that it is made from."""

from __future__ import annotations

import ast
import json
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# The modules of the tool import each other by name.
sys.path.insert(0, str(ROOT / "tools/reliability"))
try:
    import promises
    import reliability_page
    import result_file
finally:
    del sys.path[0]

ALL = [promise for rows in promises.PROMISES.values() for promise in rows]
FIELDS = {
    "tool": "soak",
    "command": "tools/soak --hours=1",
    "date": "2030-01-02 03:04 UTC",
    "commit": "0123456789ab",
    "machine": "2 cores",
    "python": "3.11.7",
    "torch": "none",
    "durations": {"seconds": 3600.25},
    "figures": {
        "launches": 12345,
        "killed": {"launchers": 3, "workers": 4},
        "suspended": {"workers": 5},
        "codes": {"0": 6, "143": 7},
    },
    "findings": [{"what": "a | b", "fix": "Yes."}, {"what": "c", "fix": ""}],
}


@cache
def names_in(path):
    """Return the tests of a module; those of a class with its name."""
    found = {""}
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            inner = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
            found |= {node.name, *(f"{node.name}::{name}" for name in inner)}
    return found


def test_the_page_is_up_to_date():
    page = reliability_page.make_page(result_file.read_results(), promises.PROMISES)
    assert (ROOT / "docs/reliability.md").read_text() == page, f"run {reliability_page.COMMAND}"


@pytest.mark.parametrize("promise", ALL, ids=lambda promise: promise.text)
def test_what_shows_a_promise_exists(promise):
    assert promise.tests or promise.runs
    assert set(promise.runs) <= reliability_page.TOOLS.keys()
    for node_id in promise.tests:
        path, _, name = node_id.partition("::")
        assert (ROOT / path).is_file(), node_id
        assert name in names_in(path), node_id


def test_a_statement_that_is_gone_is_an_error():
    with pytest.raises(ValueError, match=r"README.md no longer says 'We win.'"):
        reliability_page.link_to("README.md", "We win.")


def test_results_are_of_tools_that_the_page_knows():
    for result in result_file.read_results():
        assert result.tool in reliability_page.TOOLS
        assert all(finding.keys() == {"what", "fix"} for finding in result.findings)


def test_a_tool_that_has_not_run_is_named():
    page = reliability_page.make_page([], {})
    assert page.count("**This has not run.**") == len(reliability_page.TOOLS)


def test_a_result_is_on_the_page(tmp_path):
    (tmp_path / "soak.json").write_text(json.dumps(FIELDS))
    page = reliability_page.make_page(result_file.read_results(tmp_path), {})
    for line in (
        "    tools/soak --hours=1",
        "| date, commit | 2030-01-02 03:04 UTC, `0123456789ab` |",
        "| launches | 12,345 |",
        "| killed | 3 | 4 |",
        "| suspended |  | 5 |",
        "| codes | 0 6, 143 7 |",
        "| a \\| b | Yes. |",
        "| c | **not yet** |",
    ):
        assert line in page.splitlines()


def test_a_run_keeps_the_findings_of_its_file(tmp_path):
    path = tmp_path / "soak.json"
    path.write_text(json.dumps(FIELDS))
    result_file.Run("soak", "tools/soak").write(path, {"launches": 1}, ["c", "d"])
    result = result_file.Result.read(path)
    assert result.tool, result.command == ("soak", "tools/soak")
    assert result.figures == {"launches": 1}
    assert [tuple(one.values()) for one in result.findings] == [
        ("a | b", "Yes."),
        ("c", ""),
        ("d", ""),
    ]


def test_a_file_of_other_fields_is_an_error(tmp_path):
    (tmp_path / "x.json").write_text(json.dumps({**FIELDS, "colour": "red"}))
    with pytest.raises(TypeError, match="colour"):
        result_file.read_results(tmp_path)
