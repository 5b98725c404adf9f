"""A launch without each of the plugin folders: only built-in ones are required."""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from pathlib import Path

import pytest
from plaunch.parts import BUILT_IN

from helpers.programs import run_python
from helpers.runtime import runtime_dir  # noqa: F401 - a fixture

ROOT = Path(__file__).parents[2]
# Imported at the start of each interpreter of the test; hides the folder's package.
BLOCKER = """\
import sys
class Missing:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing)
"""
PACKAGES = {path.name: f"plaunch_{path.name}" for path in ROOT.glob("plugins/*")}
OPTIONAL = sorted(folder for folder in PACKAGES if PACKAGES[folder] not in BUILT_IN)


def run_without(folder, tmp_path, *argv, program=("-m", "plaunch")):
    """Run a command line in an installation from which the folder and its entry points are gone."""
    package = PACKAGES[folder]
    (tmp_path / "sitecustomize.py").write_text(BLOCKER.format(package=package))
    installed = importlib.metadata.distribution("plaunch")
    info = tmp_path / f"plaunch-{installed.version}.dist-info"
    info.mkdir()
    # Python uses the first metadata of a distribution on the path.
    (info / "METADATA").write_text(installed.read_text("METADATA"))
    lines = installed.read_text("entry_points.txt").splitlines()
    kept = [line for line in lines if not re.search(rf"= *{package}\b", line)]
    (info / "entry_points.txt").write_text("\n".join(kept) + "\n")
    return run_python(*program, *argv, env={**os.environ, "PYTHONPATH": str(tmp_path)})


def test_what_is_built_in_is_in_the_architecture_page():
    section = (ROOT / "docs/architecture.md").read_text().partition("\n## What is built in\n")[2]
    rows = re.findall(r"^\| `(plaunch_\w+)` \|", section.partition("\n## ")[0], re.M)
    assert set(rows) == BUILT_IN
    assert set(PACKAGES.values()) >= BUILT_IN


@pytest.mark.parametrize("folder", OPTIONAL)
def test_a_launch(folder, tmp_path):
    done = run_without(folder, tmp_path, "--no-python", sys.executable, "-c", "print('ran')")
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr


@pytest.mark.parametrize("folder", OPTIONAL)
def test_a_launch_that_fails(folder, tmp_path):
    code = "import sys; print('why', file=sys.stderr); sys.exit(3)"
    argv = ["--max-restarts=1", "--no-python", sys.executable, "-c", code]
    done = run_without(folder, tmp_path, *argv)
    assert (done.returncode, done.stderr.count("why\n")) == (3, 2), done.stderr
    assert "internal error" not in done.stderr


def test_a_first_failure_that_cannot_be_handed_up_hides_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", os.devnull)
    done = run_without("torchrun", tmp_path, "--no-python", "sh", "-c", "exit 17")
    assert done.returncode == 17
    assert re.search("^plaunch: rank 0 on .* failed.*: exit code 17$", done.stderr, re.M)
    assert "the first failure is not handed up: plaunch_torchrun, which comes" in done.stderr


@pytest.mark.parametrize("folder", OPTIONAL)
def test_help(folder, tmp_path):
    done = run_without(folder, tmp_path, "--help")
    assert done.returncode == 0, done.stderr
    assert "--nproc-per-node" in done.stdout


# A worker that controls its own launch; plaunchctl exits with 3 until that listens.
CONTROLLED = """\
import subprocess, sys, time
program = "from plaunch_control.cli import entry_point; entry_point()"
for command in ("status", "stacks", "stop"):
    code = 3
    while code == 3:
        code = subprocess.run([sys.executable, "-c", program, command]).returncode
    print(command, "exits with", code, flush=True)
time.sleep(600)  # until it is stopped
"""


def test_plaunchctl_lacks_only_stacks_without_the_library_that_reads_them(
    tmp_path,
    runtime_dir,  # noqa: F811
    monkeypatch,
):
    monkeypatch.setenv("PLAUNCH_RUNTIME_DIR", str(runtime_dir))
    done = run_without("hang", tmp_path, "--no-python", sys.executable, "-c", CONTROLLED)
    assert re.search("^  rank 0 .* running$", done.stdout, re.M), done.stdout
    assert "status exits with 0\nstacks exits with 1\n" in done.stdout
    assert "cannot read stacks: the part of plaunch that reads them is not" in done.stderr
    assert "internal error" not in done.stderr


AGENT = """\
import sys
from plaunch.agent import LocalElasticAgent, WorkerSpec
from plaunch.testing.rendezvous import FakeRendezvous
class Own(LocalElasticAgent):
    def _monitor_workers(self, worker_group):
        return super()._monitor_workers(worker_group)
for kind in (LocalElasticAgent, Own):
    spec = WorkerSpec("trainer", 1, FakeRendezvous(), entrypoint=sys.executable, args=("-c", ""))
    print(kind(spec).run().state.name, flush=True)
"""


def test_only_an_agent_with_methods_of_its_own_needs_the_adapter(tmp_path):
    done = run_without("torchrun", tmp_path, program=("-c", AGENT))
    assert (done.returncode, done.stdout) == (1, "SUCCEEDED\n"), done.stderr
    assert "PluginLoadError: plaunch_torchrun, which comes with plaunch, is not" in done.stderr
