"""Where changed code runs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools" / "mutation"))
from sandbox import CPU_LIMIT, OUTPUT, WALL_LIMIT, Sandbox  # noqa: E402

pytestmark = pytest.mark.needs("namespaces")

TRIES = f"""
import json, os
def tried(function, *args):
    try:
        function(*args)
    except OSError as error:
        return type(error).__name__
found = {{
    "writes": open("changed", "w").write("here"),
    "files": tried(open, {str(ROOT / "pyproject.toml")!r}, "r+"),
    "signals": tried(os.kill, {os.getpid()}, 0),
    "changed": open("module").read(),
}}
open({str(OUTPUT / "found")!r}, "w").write(json.dumps(found))
"""


@pytest.fixture
def sandbox(tmp_path):
    for name in ("root", "tree", "output"):
        (tmp_path / name).mkdir()
    (tmp_path / "tree/module").write_text("as it was")
    return Sandbox(*(tmp_path / name for name in ("root", "tree", "output")))


def run(sandbox, *command, cpu=60, wall=120, **options):
    return sandbox.run(
        [sys.executable, *command], cpu=cpu, wall=wall, log=sandbox.output / "log", **options
    )


def test_nothing_outside_can_be_changed_or_signalled(sandbox, tmp_path):
    changed = tmp_path / "other"
    changed.write_text("changed")
    assert run(sandbox, "-c", TRIES, files={"module": changed}) == 0, (
        sandbox.output / "log"
    ).read_text()
    assert json.loads((sandbox.output / "found").read_text()) == {
        "writes": 4,
        "files": "OSError",  # a read-only file system
        "signals": "ProcessLookupError",
        "changed": "changed",
    }
    assert os.listdir(sandbox.root) == []
    assert os.listdir(sandbox.tree) == ["module"]
    assert (sandbox.tree / "module").read_text() == "as it was"


def test_the_exit_code_is_that_of_the_command(sandbox):
    assert run(sandbox, "-c", "raise SystemExit(7)") == 7
    assert run(sandbox, "-c", "import os; os.kill(os.getpid(), 9)") == 128 + 9


def test_a_command_and_its_children_have_limits(sandbox):
    loop = "while True: pass"
    fork = f"import os\nfor _ in range(3): os.fork() or os.setsid()\n{loop}"
    assert run(sandbox, "-c", fork, cpu=1) == CPU_LIMIT
    assert run(sandbox, "-c", "import time; time.sleep(600)", wall=1) == WALL_LIMIT
