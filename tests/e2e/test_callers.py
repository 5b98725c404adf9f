"""Programs that call torchrun, with plaunch in its place, as far as they are installed.

`python tools/callers` installs the others, and runs the same with them.
"""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.needs("libuv")]

# The modules of the tool import each other by name.
sys.path.insert(0, str(Path(__file__).parents[2] / "tools/callers"))
try:
    from libraries import LIBRARIES
    from scenarios import run
finally:
    del sys.path[0]

BOUND = 200.0  # seconds; on a busy machine, imports alone take minutes


def is_installed(library):
    try:
        for requirement in library.requirements:
            importlib.metadata.version(requirement.partition("==")[0])
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


SCENARIOS = [
    pytest.param(scenario, id=f"{library.name}-{number}")
    for library in LIBRARIES
    if is_installed(library)
    for number, scenario in enumerate(library.scenarios)
]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_library_runs_its_workers_with_plaunch(tmp_path, scenario):
    outcome = run(scenario, Path(sys.executable), tmp_path / "run", BOUND)
    assert scenario.find_problem(outcome) == "", outcome.text


def test_torchrun_itself_runs_here():
    assert "torch" in [one.id.partition("-")[0] for one in SCENARIOS]
