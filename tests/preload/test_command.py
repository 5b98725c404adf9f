"""Parsing a worker's command."""

from __future__ import annotations

import sys

import pytest
from plaunch_preload.command import Command, CommandError, split_command

PYCS = "--check-hash-based-pycs"


@pytest.mark.parametrize(
    ("words", "interpreter", "kind", "target", "arguments"),
    [
        ("-u train.py --lr 1", ("-u",), "script", "train.py", ["--lr", "1"]),
        ("train.py", (), "script", "train.py", []),
        ("-X dev -Werror -O train.py", ("-X", "dev", "-Werror", "-O"), "script", "train.py", []),
        ("-Xdev -W error train.py -c", ("-Xdev", "-W", "error"), "script", "train.py", ["-c"]),
        ("-m pkg.train a", (), "-m", "pkg.train", ["a"]),
        ("-u -mpkg.train a", ("-u",), "-m", "pkg.train", ["a"]),
        ("-um pkg.train", ("-u",), "-m", "pkg.train", []),
        ("-c code a", (), "-c", "", ["code", "a"]),
        ("-ccode", (), "-c", "", ["code"]),
        (
            "--check-hash-based-pycs never x.py",
            ("--check-hash-based-pycs", "never"),
            "script",
            "x.py",
            [],
        ),
    ],
)
def test_a_command_of_python(words, interpreter, kind, target, arguments):
    command = split_command([sys.executable, *words.split()])
    assert command == Command((sys.executable, *interpreter), kind, target)
    assert command.arguments == tuple(arguments)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bash", "-c", "x"], "not Python"),
        ([], "forked from the launcher"),
        ([sys.executable], "no script"),
        ([sys.executable, "-u", "-", "x"], "the script comes from stdin"),
        ([sys.executable, "-m"], "has no value"),
        ([sys.executable, "-I", "train.py"], "-I prevents a fork server"),
        ([sys.executable, "-uE", "train.py"], "-E prevents"),
        ([sys.executable, "-S", "-m", "train"], "-S prevents"),
        ([sys.executable, "app.pyz"], "an archive"),
        ([sys.executable, "/"], "a folder"),
    ],
)
def test_a_command_that_cannot_be_forked(words, said):
    with pytest.raises(CommandError, match=said):
        split_command(words)
