"""docs/gpu.md, and the command that writes it on a machine with a GPU."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# The modules of the tool import each other by name.
sys.path.insert(0, str(ROOT / "tools/gpu"))
try:
    import gpu_page
    import gpu_run
finally:
    del sys.path[0]

RESULTS = """\
<testsuites><testsuite>
<testcase name="test_preload" time="4.25"/>
<testcase name="test_restart[fresh]" time="9.1">
<properties>
<property name="figure" value="3.2 s"/><property name="figure" value="a|b"/>
</properties>
</testcase>
<testcase name="test_restart[preloaded]" time="0">
<failure message="AssertionError: first&#10;second">all of it</failure>
</testcase>
<testcase name="test_workers_are_bound" time="0">
<skipped message="no node">there</skipped>
</testcase>
</testsuite></testsuites>
"""


def page(**more):
    return gpu_page.make_page(
        gpu_page.Run({"GPU": "a big one"}, gpu_page.read_results(RESULTS), **more)
    )


def test_the_page_is_of_today():
    text = (ROOT / "docs/gpu.md").read_text()
    is_run = gpu_page.NOT_RUN not in text
    assert text.startswith(gpu_page.HEAD), "run python tools/gpu/gpu_page.py > docs/gpu.md"
    assert "| driver | " in text if is_run else text == gpu_page.make_page(None)


def test_every_check_is_on_the_page():
    found = set()
    for path in (ROOT / "tests/gpu").glob("test_*.py"):
        text = path.read_text()
        if "pytestmark = pytest.mark.gpu" in text:
            functions = (one for one in ast.parse(text).body if isinstance(one, ast.FunctionDef))
            found |= {one.name for one in functions if one.name.startswith("test_")}
    assert found == set(gpu_page.CHECKS)


def test_the_page_has_the_results():
    rows = page().splitlines()
    for row in (
        "| GPU | a big one |",
        f"| {gpu_page.CHECKS['test_preload']} | passed |  | 4.2 |",
        f"| {gpu_page.CHECKS['test_restart']} (fresh) | passed | 3.2 s; a\\|b | 9.1 |",
        f"| {gpu_page.CHECKS['test_restart']} (preloaded) | **failed**: AssertionError: first |  "
        "| 0.0 |",
        f"| {gpu_page.CHECKS['test_workers_are_bound']} | skipped: no node |  | 0.0 |",
        f"| {gpu_page.CHECKS['test_the_health_check']} | **not run**: out of time |  |  |",
    ):
        assert row in rows
    assert gpu_page.NOT_RUN not in page()


def outcomes(result, tests=gpu_page.CHECKS):
    return [gpu_page.Outcome(test, "", result, "", (), 0.0) for test in tests]


@pytest.mark.parametrize(
    ("found", "is_success"),
    [
        (outcomes("passed"), True),
        (outcomes("skipped"), False),
        ([*outcomes("passed"), *outcomes("skipped")], True),
        ([*outcomes("passed"), *outcomes("failed")], False),
        (outcomes("passed", ["test_preload"]), False),
        ([], False),
    ],
)
def test_what_is_a_success(found, is_success):
    assert gpu_page.is_success(found) == is_success


def test_the_page_of_a_run_without_a_gpu_states_it():
    assert gpu_page.STAND_IN in page(is_stand_in=True)
    assert gpu_page.STAND_IN not in page()


@pytest.fixture
def torch(monkeypatch):
    """Pretend a torch with some devices."""

    def make(devices):
        found = {"torch": "2.13.0", "CUDA": "13.0", "NCCL": "2.30.7", "devices": devices}
        monkeypatch.setattr(gpu_run, "ask_torch", lambda: found)

    return make


def test_a_machine_without_a_gpu(torch, capsys):
    torch(devices=0)
    assert gpu_run.main([]) == 2
    assert "torch 2.13.0 sees no GPU" in capsys.readouterr().err


def test_a_folder_without_wheels(torch, capsys, tmp_path):
    torch(devices=1)
    assert gpu_run.main([f"--wheels={tmp_path}"]) == 2
    assert "run `tools/gpu_check wheels` on a machine with a network" in capsys.readouterr().err


def test_a_python_without_torch(monkeypatch, tmp_path, capsys):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no module torch >&2; exit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(gpu_run.sys, "executable", str(python))
    assert gpu_run.main([]) == 2
    assert f"{python} cannot import torch (no module torch)" in capsys.readouterr().err


def test_a_torch_that_is_too_old(monkeypatch, tmp_path, capsys):
    python = tmp_path / "python"
    python.write_text("""#!/bin/sh\necho '{"torch": "2.10.1+cu130", "devices": 1}'\n""")
    python.chmod(0o755)
    monkeypatch.setattr(gpu_run.sys, "executable", str(python))
    assert gpu_run.main([]) == 2
    assert "torch 2.10.1+cu130 is too old" in capsys.readouterr().err
