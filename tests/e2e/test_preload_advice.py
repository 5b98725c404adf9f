"""The time accounting suggests `--preload` if it would save time for imports."""

from __future__ import annotations

import re

import pytest

from helpers.programs import run_python
from helpers.stacks import readable_stacks  # noqa: F401 - a fixture

RESTARTS = ("--max-restarts=3", "--monitor-interval=0.01")

# Imports its modules in every attempt, and fails in all but the last.
IMPORTING = """
import os, sys, time
import mymodel
if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
    time.sleep(1.0)  # for looks after the imports
sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] != "3")
"""
SLOW = "import os, time\ntime.sleep({} if os.environ['TORCHELASTIC_RESTART_COUNT'] != '0' else 0)\n"


def told(done):
    """Return the launcher's last lines: the time accounting, and the advice."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("plaunch: ")]
    first = next(at for at, line in enumerate(lines) if "this launch took" in line)
    return lines[first:]


@pytest.fixture
def installed(plaunch):
    """Launches find packages in this folder, and show their log lines."""
    folder = plaunch.folder / "site-packages"
    folder.mkdir()
    plaunch.environ |= {"PYTHONPATH": str(folder), "LOGLEVEL": "INFO"}
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("readable_stacks")
def test_long_imports_after_restarts_are_reported_once(plaunch, installed):
    (installed / "heavy").mkdir()
    (installed / "heavy" / "__init__.py").write_text(SLOW.format(2.2))
    (installed / "light.py").write_text(SLOW.format(0.3))
    plaunch.write("mymodel.py", "import heavy, light\n")
    done = plaunch.run(*RESTARTS, plaunch.write("train.py", IMPORTING))
    assert done.returncode == 0, done.stderr
    account, advice = told(done)
    assert "3 restarts" in account
    assert "in each of 3 restarts, local rank 0 imported heavy again, for at least " in advice
    assert "; --preload=heavy would have saved that" in advice


QUICK = "import os, sys; sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')"


@pytest.mark.parametrize("restarts", [0, 1])
@pytest.mark.usefixtures("installed")
def test_nothing_of_it_is_imported_without_a_restart(plaunch, restarts):
    script = plaunch.write("train.py", QUICK)
    argv = ["-v", "-m", "plaunch", f"--max-restarts={restarts}", script]
    shown = run_python(*argv, env=plaunch.environ)
    imported = set(re.findall(r"^import '([\w.]+)'", shown.stderr, re.M))
    assert "plaunch_events.stream" in imported
    own = {"plaunch_hang.stacks.import_watch"}
    assert own & imported == (own if restarts else set())
    assert "--preload=" not in shown.stderr
