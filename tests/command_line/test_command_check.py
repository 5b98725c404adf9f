"""What is found out about the workers' command without running it."""

from __future__ import annotations

import sys

import pytest
from plaunch.cli import parse
from plaunch.errors import UsageError
from plaunch_command_line.command_check import check_command, check_module, check_script


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    "name", ["json.tool", "this", "zipimport", "space.deep.module", "plaunch", "extends.elsewhere"]
)
def test_modules_that_are_found(name, tmp_path):
    """No package is imported for it."""
    write(
        tmp_path,
        {
            "space/deep/module.py": "",  # in a namespace package
            "extends/__init__.py": "__path__ = [*__path__, '/somewhere']\nraise SystemExit('no')",
        },
    )
    check_module(name, {})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("jsn.tool", "'jsn.tool', which Python"),
        ("email", "'email', a package without a __main__.py"),
        ("space.deep", "'space.deep', a package without"),
        ("train.py", "for the file 'train.py' leave out -m"),
        ("space/deep/module", "for the file 'space/deep/module.py' leave out -m"),
        ("wrong", r"the module 'wrong' has a syntax error: .*wrong\.py:1"),
        ("sys", "built into Python"),
        (".train", "is relative"),
    ],
)
def test_modules_that_python_would_not_run(name, message, tmp_path):
    files = {"train.py": "", "space/deep/module.py": "", "wrong.py": "x ="}
    write(tmp_path, files)
    with pytest.raises(UsageError, match=message):
        check_module(name, {})


def test_a_path_of_the_workers_own_is_not_searched():
    check_module("no_such_module", {"PYTHONPATH": "/staged/code"})


def test_another_python_may_know_another_language(tmp_path, monkeypatch):
    write(tmp_path, {"new.py": "x ="})
    args = parse(["new.py"], {})
    check_command(args, "/bin/sh", {})
    with pytest.raises(UsageError, match="syntax error"):
        check_command(args, sys.executable, {})


def test_a_warning_of_the_compiler_is_left_to_the_workers(tmp_path, recwarn):
    write(tmp_path, {"warns.py": "assert (1, 'always')\nx = 1 is 1\n"})
    check_script("warns.py")
    assert not recwarn.list
