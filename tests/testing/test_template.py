"""The example package works as a template, as its README says: copied, renamed, tested."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from helpers.programs import run_python

ROOT = Path(__file__).parents[2]
README = (ROOT / "examples/plaunch-example-plugins/README.md").read_text()
TIMEOUT = 200.0  # seconds


def run(folder, *words, **environ):
    environ = {
        **os.environ,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_ADDOPTS": "",
        "PYTEST_DEBUG_TEMPROOT": str(folder),  # pytest removes what other runs have left
        **environ,
    }
    done = run_python(*words, cwd=folder, env=environ, timeout=TIMEOUT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(2 * TIMEOUT)
def test_copied_renamed_and_tested(tmp_path):
    section = README.partition("## A package of your own")[2].partition("\n## ")[0]
    commands = re.findall("^    (.+)$", section, re.M)
    renaming, (install, test) = commands[:-2], commands[-2:]
    assert install == 'python -m pip install -e ".[dev]"'
    assert test == "python -m pytest"
    (tmp_path / "examples").mkdir()
    shutil.copytree(
        ROOT / "examples/plaunch-example-plugins",
        tmp_path / "examples/plaunch-example-plugins",
        ignore=shutil.ignore_patterns("__pycache__", ".*"),
    )
    subprocess.run(["sh", "-ec", "\n".join(renaming)], cwd=tmp_path, timeout=TIMEOUT, check=True)
    package = tmp_path / "acme-plaunch"
    left = [p for p in package.rglob("*") if p.is_file() and "example_plugins" in p.read_text()]
    assert not left
    # As the README's command, but without network access.
    words = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    site = str(tmp_path / "site")
    run(package, "-m", "pip", "install", *words, "--target", site, str(package))
    tested = run(package, "-m", "pytest", "-q", "-p", "no:cacheprovider", PYTHONPATH=site)
    assert int(re.search(r"(\d+) passed", tested)[1]) > 200
    assert "skipped" not in tested
    listed = run(tmp_path, "-m", "plaunch", "--list-plugins", PYTHONPATH=site)
    assert listed.count("acme-plaunch") == 11
    checked = run(tmp_path, "-m", "plaunch", "--check-plugin=flat", PYTHONPATH=site)
    assert " 0 failed" in checked
