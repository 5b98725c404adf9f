"""The changes that the tool makes to lines."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools" / "mutation"))
import mutations  # noqa: E402
from project import Project  # noqa: E402


def changes_of(source):
    """Return the changes of a module, and check that each can be compiled."""
    found = mutations.find_mutations("core/small.py", source)
    for each in found:
        compile(each.apply(source), "small.py", "exec")
    return [each.what for each in found]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", ["comparison: a < b -> a <= b"]),
        ("a is not b", ["comparison: a is not b -> a is b"]),
        (
            "a < b in c",
            ["comparison: a < b in c -> a < b not in c", "comparison: a < b in c -> a <= b in c"],
        ),
        ("a and b", ["boolean operator: a and b -> (a or b)"]),
        ("not a", ["removed not: not a -> (a)"]),
        ("a - b", ["arithmetic: a - b -> (a + b)"]),
        ("a if b else c", ["swapped branches: a if b else c -> (c if b else a)"]),
        ("True", ["constant: True -> False"]),
        ("2", ["constant: 2 -> 0", "constant: 2 -> 3"]),
        ("'é', 0", ["constant: 'é' -> 'é_changed'", "constant: 0 -> 1"]),
    ],
)
def test_expressions(source, expected):
    assert changes_of(f"value = {source}") == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("run()", ["removed statement: run() -> pass"]),
        ("return a", ["returned value: return a -> return None"]),
        ("return", []),
        ("if a: pass", ["negated condition: a -> not (a)"]),
        (
            "for a in b:\n        continue",
            ["continue: continue -> break"],
        ),
        (
            "try:\n        pass\n    finally:\n        a = b\n        c = d",
            ["emptied block: a = b c = d -> pass"],
        ),
        ("yield", []),
    ],
)
def test_statements(source, expected):
    assert changes_of(f"def function():\n    {source}\n") == expected


def test_a_default_is_covered_by_the_tests_that_call_the_function():
    (change,) = mutations.find_mutations("m.py", "def f(a=True):\n    a()\n    b = a\n")[:1]
    assert (change.what, change.covered) == ("constant: True -> False", (2, 3))


def test_a_statement_of_several_lines_is_covered_by_all_of_them_without_its_body():
    source = "def f(a):\n    while a(\n        b\n    ):\n        c = a\n"
    (change,) = mutations.find_mutations("m.py", source)
    assert (change.where, change.number, change.covered) == ("f", 2, (2, 3, 4))


@pytest.mark.parametrize(
    "source",
    [
        '"""Some text."""',
        "import a",
        "__all__ = ['name']",
        "text = 'several words'",
        "text = f'{a + b}'",
        "timeout = 30.0",
        "def f(timeout=30.0): pass",
        "log.debug('name', a + b)",
        "def f(a: int | None): pass",
        "if TYPE_CHECKING:\n    a = 1",
        "class P(Protocol):\n    def f(self): return 1",
        "option = Option(help='name')",
        "log = logging.getLogger('name')",
        "Factory = Callable[['Context'], 'Check']",
    ],
)
def test_wording_and_what_does_not_run_stay_as_they_are(source):
    assert changes_of(source) == []


def test_what_warns_or_raises_can_be_removed_but_its_words_stay():
    assert changes_of("def f():\n    raise ValueError('name' + a)\n") == [
        "removed statement: raise ValueError('name' + a) -> pass"
    ]
    assert changes_of("def f():\n    logger.warning('name', a - b)\n") == [
        "removed statement: logger.warning('name', a - b) -> pass"
    ]


def test_a_change_is_known_by_its_text_when_lines_have_moved():
    source = "def f(a):\n    return a > 1\n"
    before = mutations.find_mutations("m.py", source)
    after = mutations.find_mutations("m.py", f"import b\n\n\n{source}")
    assert [each.key for each in before] == [each.key for each in after]
    assert [each.number for each in before] != [each.number for each in after]


def test_listed_changes_still_exist_and_have_a_reason():
    project = Project(ROOT, ROOT)
    listed = project.listed()
    modules = {key[0]: (ROOT / key[0]).read_text() for key in listed}
    found = {
        each.key
        for module, source in modules.items()
        for each in mutations.find_mutations(module, source)
    }
    assert set(listed) - found == set(), "remove them from tools/mutation/equivalents.json"
    assert all(listed.values())
    assert len(listed) == len(json.loads(project.equivalents.read_text()))
