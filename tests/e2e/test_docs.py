"""The documentation is true: its commands run, and its lists are complete.

A code block below `<!-- file: NAME -->` is written to a file, and one below `<!-- run -->` or
`<!-- run: exit code N -->` is a shell script, run in a folder that holds those files and the
examples. A block below `<!-- prints -->` is what the script before it printed, among other things.
"""

from __future__ import annotations

import inspect
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


def test_there_are_pages_with_commands_to_try():
    assert ROOT / "docs/tutorial.md" in PAGES


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_run(page, plaunch):
    (plaunch.folder / "examples").symlink_to(ROOT / "examples")
    path = f"{Path(sys.executable).parent}:{plaunch.environ['PATH']}"
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
                env={**plaunch.environ, "PATH": path},
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
            for line in block["text"].splitlines():
                assert line in printed.splitlines(), printed
        else:
            pytest.fail(f"{page.name} has an unknown mark {block['mark']!r}")


def test_every_exit_code_is_listed():
    page = (ROOT / "docs/errors.md").read_text()
    for code in plaunch.errors.ExitCode:
        assert re.search(rf"^\| {code.value} \| `{code.name}` \|", page, re.MULTILINE), code


def test_every_exception_is_listed_with_its_exit_code():
    page = (ROOT / "docs/errors.md").read_text()
    listed = dict(re.findall(r"^\| `(\w+)` \| .*? \| (.*?) \|", page, re.MULTILINE))
    exceptions = {
        name: found
        for name, found in inspect.getmembers(plaunch.errors, inspect.isclass)
        if issubclass(found, plaunch.errors.PlaunchError)
    }
    exceptions["ChildFailedError"] = plaunch.process.ChildFailedError
    assert sorted(listed) == sorted(exceptions)
    own = {"ChildFailedError": "the worker's", "SignalException": "128 + n"}
    for name, found in exceptions.items():
        assert listed[name] == own.get(name, str(int(found.exit_code))), name


def test_links_between_pages_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "benchmarks/README.md", *ROOT.glob("docs/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
