"""The documentation is true: its commands run, and its lists are complete.

A code block below `<!-- file: NAME -->` is written to a file, and one below `<!-- run -->` or
`<!-- run: exit code N -->` is a shell script, run in a folder that holds those files and the
examples. The lines of a block below `<!-- prints -->` are among those that the script before it has
printed; HOST stands for the name of this host, and decimal numbers may be others.
"""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import plaunch.errors
import plaunch.process
import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"^<!-- (?P<mark>.+?) -->\n+```\w*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
PAGES = sorted(
    path for path in [ROOT / "README.md", *ROOT.glob("docs/*.md")] if BLOCK.search(path.read_text())
)
TIMEOUT = 60.0  # seconds for one block


def comparable(text):
    return [re.sub(r"\d+\.\d+", "0.0", line) for line in text.splitlines()]


def test_there_are_pages_with_commands_to_try():
    assert ROOT / "docs/tutorial.md" in PAGES


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_run(page, plaunch):
    (plaunch.folder / "examples").symlink_to(ROOT / "examples")
    environ = {
        **plaunch.environ,
        "PATH": f"{Path(sys.executable).parent}:{plaunch.environ['PATH']}",
        "PYTHONUNBUFFERED": "",  # what a plugin prints comes in whole lines
    }
    printed = ""
    for block in BLOCK.finditer(page.read_text()):
        kind, _, value = block["mark"].partition(": ")
        if kind == "file":
            plaunch.write(value, block["text"])
        elif kind == "run":
            expected = int(value.removeprefix("exit code ")) if value else 0
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block["text"]],
                cwd=plaunch.folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=TIMEOUT,
                check=False,
            )
            printed = done.stdout
            assert done.returncode == expected, f"{block['text']}\n{printed}"
        elif kind == "prints":
            lines = comparable(printed)
            for line in comparable(block["text"].replace("HOST", os.uname().nodename)):
                assert line in lines, printed
        else:
            pytest.fail(f"{page.name} has an unknown mark {block['mark']!r}")


def test_every_exit_code_is_listed():
    page = (ROOT / "docs/errors.md").read_text()
    for code in plaunch.errors.ExitCode:
        assert re.search(rf"^\| {code.value} \| `{code.name}` \|", page, re.MULTILINE), code


def test_every_exception_is_listed_with_its_bases_and_exit_code():
    page = (ROOT / "docs/errors.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|(.*?)\| (.*?) \|", page, re.MULTILINE)
    listed = {name: (set(re.findall(r"\w+", bases)), code) for name, bases, code in rows}
    exceptions = {
        name: found
        for name, found in inspect.getmembers(plaunch.errors, inspect.isclass)
        if issubclass(found, plaunch.errors.PlaunchError)
    }
    exceptions["ChildFailedError"] = plaunch.process.ChildFailedError
    assert sorted(listed) == sorted(exceptions)
    varying = {"ChildFailedError": "the worker's", "SignalException": "128 + n"}
    for name, found in exceptions.items():
        bases = {base.__name__ for base in found.__bases__} - {"PlaunchError"}
        assert listed[name] == (bases, varying.get(name, str(int(found.exit_code)))), name


def test_links_between_pages_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "benchmarks/README.md", *ROOT.glob("docs/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
