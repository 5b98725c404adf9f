"""tools/fuzz: each target is fuzzed for a moment, and a finding becomes a file."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers import fuzz_targets

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "fuzzing" / "fuzz.py"
LIMIT = 200.0  # seconds for a second of fuzzing, on a busy machine

spec = importlib.util.spec_from_file_location("fuzz_tool", TOOL)
fuzz_tool = importlib.util.module_from_spec(spec)
before = list(sys.path)
try:
    spec.loader.exec_module(fuzz_tool)
finally:
    sys.path[:] = before


@pytest.mark.slow
@pytest.mark.parametrize("name", fuzz_targets.NAMES)
def test_a_target_is_fuzzed(name, tmp_path):
    pytest.importorskip("atheris", reason="atheris has no wheel for this Python or machine")
    command = [sys.executable, TOOL, name, "--seconds=1", "--seed=1", f"--child={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert "found: " not in done.stdout
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads((tmp_path / "figures.json").read_text())["runs"] > 0


def fail_on_word(data):
    if b"bad" in data:
        raise ValueError("a word")


def test_a_finding_is_shortened():
    target = SimpleNamespace(check=fail_on_word)
    kind = fuzz_tool.find_kind(target, b"some bad input")
    assert kind == "ValueError in the check a word"
    assert fuzz_tool.shorten(target, b"some bad input", kind) == b"bad"
    assert fuzz_tool.find_kind(target, b"good") is None


def test_a_finding_becomes_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fuzz_targets, "CORPUS", tmp_path)
    monkeypatch.setattr(fuzz_tool, "ROOT", tmp_path)
    monkeypatch.setattr(
        fuzz_targets, "load", lambda name: SimpleNamespace(name=name, check=fail_on_word)
    )
    assert fuzz_tool.describe("frames", b"a bad one") == "ValueError in the check a word"
    (path,) = (tmp_path / "frames").iterdir()
    assert path.name.startswith("found-")
    assert path.read_bytes() == b"bad"
    assert path.name in capsys.readouterr().out


def test_inputs_that_reach_nothing_new_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(fuzz_targets, "CORPUS", tmp_path / "corpus")
    monkeypatch.setattr(fuzz_tool, "WORK", tmp_path / "work")
    reached = {b"long": {1, 2}, b"a": {1}, b"b": {1}, b"both": {1, 2, 3}}
    monkeypatch.setattr(fuzz_tool, "arcs_of", lambda target, data: reached[data])
    own = tmp_path / "corpus" / "frames"
    own.mkdir(parents=True)
    (tmp_path / "work" / "frames").mkdir(parents=True)
    (own / "case-a").write_bytes(b"a")
    (own / "0123").write_bytes(b"long")
    (tmp_path / "work" / "frames" / "x").write_bytes(b"both")
    (tmp_path / "work" / "frames" / "y").write_bytes(b"b")
    fuzz_tool.reduce("frames")
    assert sorted(path.read_bytes() for path in own.iterdir()) == [b"a", b"both"]
