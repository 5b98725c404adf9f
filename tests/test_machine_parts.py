"""`needs(part)`, and what `.ci/run` installs for it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from helpers import machine_parts
from helpers.machine_parts import PARTS, REQUIRED, Part, need

TESTS = Path(__file__).parent
PROGRAMS = {"present": Part(lambda: ""), "absent": Part(lambda: "it is not here", ("absent-deb",))}


@pytest.fixture(autouse=True)
def _parts(monkeypatch):
    monkeypatch.setattr(machine_parts, "PARTS", PROGRAMS)
    machine_parts.find_missing.cache_clear()
    yield
    machine_parts.find_missing.cache_clear()


@pytest.fixture
def apt(tmp_path, monkeypatch):
    """Put an `apt-get` on PATH that writes down its words, and ends with the code in a file."""
    program = tmp_path / "apt-get"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/words\nexit $(cat {tmp_path}/code)\n')
    program.chmod(0o755)
    (tmp_path / "code").write_text("0")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("sys.argv", ["machine_parts"])
    return tmp_path


def test_what_is_there_is_used(monkeypatch):
    monkeypatch.setenv(REQUIRED, "present")
    need("present")


def test_without_a_part_a_test_is_skipped(monkeypatch):
    monkeypatch.delenv(REQUIRED, raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"needs absent: it is not here$"):
        need("present", "absent")


def test_without_a_required_part_it_fails(monkeypatch):
    monkeypatch.setenv(REQUIRED, "present,absent")
    with pytest.raises(pytest.fail.Exception, match=r"needs absent: .*PYTEST_REQUIRED_PARTS"):
        need("absent")


@pytest.mark.parametrize(("code", "required"), [(0, "absent"), (100, "")])
def test_root_installs_what_is_missing(apt, monkeypatch, capsys, code, required):
    (apt / "code").write_text(str(code))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    machine_parts.main()
    update, install = (apt / "words").read_text().splitlines()
    assert update.endswith("update")
    assert install.endswith("--no-install-recommends absent-deb")
    out, err = capsys.readouterr()
    assert out == required
    assert ("not installed: absent: it is not here" in err) == (not required)


def test_a_user_installs_and_requires_nothing(apt, monkeypatch, capsys):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    machine_parts.main()
    assert capsys.readouterr().out == ""
    assert not (apt / "words").exists()


def test_tests_name_the_parts_that_they_need():
    """A skip of another kind would not be noticed where the part must be there."""
    own = re.compile(r"skipif\([^)]*(?:which\(|get(?:e)?uid\(\) != 0)|pytest\.skip\([^)]*install")
    named = re.compile(r"\bneeds?\(([^)]*)\)")
    for path in TESTS.rglob("*.py"):
        text = path.read_text()
        if path.name not in ("machine_parts.py", Path(__file__).name, "test_preload_packages.py"):
            assert own.search(text) is None, f"{path}: name the part with needs() instead of a skip"
            names = {
                name for words in named.findall(text) for name in re.findall(r'"(.+?)"', words)
            }
            assert names <= PARTS.keys(), path
