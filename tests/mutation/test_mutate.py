"""The tool that changes lines, on a project of two modules."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "mutation" / "mutate.py"

LEVELS = """\
def is_low(level):
    return level < 3


def is_even(level):
    return level % 2 == 0
"""
PROGRAM = """\
import sys


def code_of(words):
    return 7 if words else 0


if __name__ == "__main__":
    sys.exit(code_of(sys.argv[1:]))
"""
TESTS = """\
import subprocess
import sys

from small import levels


def test_low():
    assert levels.is_low(1)
    assert not levels.is_low(9)


def test_even():
    assert [level for level in range(4) if levels.is_even(level)] == [0, 2]


def test_program():
    for words, code in (["word"], 7), ([], 0):
        command = [sys.executable, "-m", "small.program", *words]
        assert subprocess.run(command).returncode == code
"""
BOUNDARY = {
    "module": "core/small/levels.py",
    "where": "is_low",
    "line": "return level < 3",
    "mutation": "comparison: level < 3 -> level <= 3",
}
LISTED = {
    **BOUNDARY,
    "mutation": "constant: 3 -> 4",
    "why": "there is no level 3",
}
NEW_TESTS = """

def test_that_always_fails():
    assert levels.is_low(4)


def test_the_boundary():
    assert not levels.is_low(3)
"""


@pytest.fixture
def project(tmp_path):
    """A project whose tests miss what happens at level 3."""
    files = {
        "core/small/__init__.py": "",
        "core/small/levels.py": LEVELS,
        "core/small/program.py": PROGRAM,
        "tests/test_levels.py": TESTS,
        "pytest.ini": "[pytest]\npythonpath = core\n",
        "tools/mutation/equivalents.json": json.dumps([LISTED]),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def mutate(root, *options):
    command = [sys.executable, str(TOOL), f"--root={root}", "--source=core/small", "--cores=2"]
    done = subprocess.run(
        [*command, *options],
        check=False,
        capture_output=True,
        text=True,
        timeout=200,
        env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "PYTHONPATH": str(root / "core")},
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done


def choose(root, *chosen):
    """Choose changes, as if an earlier command had done so."""
    keys = [[each["module"], each["where"], each["line"], each["mutation"]] for each in chosen]
    folder = root / "build/mutation"
    folder.mkdir(parents=True)
    (folder / "run-0.jsonl").write_text(json.dumps(keys) + "\n")


@pytest.mark.slow
@pytest.mark.needs("namespaces")
def test_a_change_that_no_test_notices_survives_until_one_does(project):
    even = {
        "module": "core/small/levels.py",
        "where": "is_even",
        "line": "return level % 2 == 0",
        "mutation": "comparison: level % 2 == 0 -> level % 2 != 0",
    }
    program = {
        "module": "core/small/program.py",
        "where": "code_of",
        "line": "return 7 if words else 0",
        "mutation": "constant: 7 -> 8",
    }
    gone = {**BOUNDARY, "line": "return level < 4"}
    choose(project, BOUNDARY, LISTED, even, program, gone)

    done = mutate(project, "--resume")
    assert done.returncode == 1
    assert "core/small/levels.py:2 in is_low: survived, 1 tests" in done.stdout
    assert "    -    return level < 3\n    +    return level <= 3" in done.stdout
    assert "[tests/test_levels.py::test_even]" in done.stdout
    # This line is executed only in a process that the test starts.
    assert "[tests/test_levels.py::test_program]" in done.stdout
    records = (project / "build/mutation/run-0.jsonl").read_text().splitlines()[1:]
    assert [json.loads(record)["tests"] for record in records] == [1, 1, 1]
    assert "4 changes: 1 survived, 1 equivalent, 2 killed" in done.stdout
    assert (project / "core/small/levels.py").read_text() == LEVELS

    with (project / "tests/test_levels.py").open("a") as file:
        file.write(NEW_TESTS)
    done = mutate(project, "--resume", f"--result={project / 'result.json'}")
    assert done.returncode == 0
    # The test that always fails has killed nothing.
    assert "[tests/test_levels.py::test_the_boundary]" in done.stdout
    result = json.loads((project / "result.json").read_text())
    assert (result["figures"]["killed"], result["figures"]["equivalent"]) == (3, 1)
    assert result["figures"]["survived at first"] == 1
