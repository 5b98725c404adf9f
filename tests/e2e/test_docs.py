"""The documentation is correct: its commands run, and its lists are complete.

The commands of a page run in order, in a folder that has the repository's `pyproject.toml` and
examples, which they must not change. A code block below `<!-- file: NAME -->` is written to a file
in the current folder. One below `<!-- run -->` or `<!-- run: exit code N -->` is a shell script;
the folder that it changes to is the current one from then on. The lines of a block below
`<!-- prints -->` must be among those that the script before it has printed; HOST stands for the
name of this host, and decimal numbers and seconds may differ. Loopback ports are replaced by free
ones. `pip install` installs into a folder of the test. Processes that a script leaves running are
killed at the end of the page.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import os
import pkgutil
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import plaunch.errors
import plaunch.process
import plaunch.rendezvous
import plaunch_events
import plaunch_membership
import plaunch_rendezvous_c10d.options
import pytest
from plaunch.plugin import KINDS, LIFECYCLE
from plaunch_membership.options import Timing
from plaunch_rendezvous_etcd.testing import find_etcd, free_ports
from plaunch_testing.conformance import RendezvousConformance, RendezvousStoreConformance

from helpers.machine_parts import need

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"^<!-- (?P<mark>[^\n]+?) -->\n+```\w*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
PAGES = sorted(
    path for path in [ROOT / "README.md", *ROOT.glob("docs/*.md")] if BLOCK.search(path.read_text())
)
LOOP_BACK = re.compile(r"((?:\b127\.0\.0\.1|\blocalhost):)(\d+)\b")
TIMEOUT = 60.0  # seconds for one block


def comparable(text):
    return [re.sub(r"\d+\.\d+|\d+(?= s\b)", "0.0", line) for line in text.splitlines()]


def test_there_are_pages_with_commands_to_try():
    assert ROOT / "docs/tutorial.md" in PAGES


def test_no_page_kills_processes_by_a_pattern():
    """It may hit the training of somebody else."""
    by_pattern = re.compile(r"\b(?:pgrep|pkill|killall|pidof)\b")
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md")]
    found = [
        line
        for path in pages
        for line in path.read_text().splitlines()
        if by_pattern.search(line) and "does not hit it" not in line  # what the guard survives
    ]
    assert found == []


class Shell:
    """Runs scripts, each in its own session and in the folder where the last one ended."""

    def __init__(self, folder, environ):
        self.folder = folder
        self._environ = environ
        self._sessions = []

    def run(self, script, ended_in):
        """Run a script; return its exit code and output. `ended_in` gets its last folder."""
        trap = f"trap 'pwd > {shlex.quote(str(ended_in))}' EXIT"
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", f"{trap}\n{script}"],
            cwd=self.folder,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._sessions.append(process.pid)
        with process:
            try:
                printed, _ = process.communicate(timeout=TIMEOUT)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        self.folder = Path(ended_in.read_text().rstrip("\n"))
        return process.returncode, printed

    def close(self):
        """Kill processes that the scripts have left."""
        for session in self._sessions:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(session, signal.SIGKILL)


def contents(folder):
    """The repository's files in a folder, by path."""
    kept = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {path.relative_to(folder): path.read_bytes() for path in kept}


def with_free_ports(text):
    """The text with a free port in place of each fixed one."""
    ports = sorted({port for _, port in LOOP_BACK.findall(text)})
    others = dict(zip(ports, free_ports("127.0.0.1", len(ports)), strict=True))
    return LOOP_BACK.sub(lambda found: f"{found[1]}{others[found[2]]}", text)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_run(page, plaunch):
    folders = [str(Path(sys.executable).parent), plaunch.environ["PATH"]]
    if page.name == "etcd.md":
        need("etcd")
        folders.append(str(Path(find_etcd()).parent))
    repository, installed = plaunch.folder / "repository", plaunch.folder / "installed"
    ignored = shutil.ignore_patterns("__pycache__", "checkpoint*", ".*")
    shutil.copytree(ROOT / "examples", repository / "examples", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", repository)
    before = contents(repository)
    environ = {
        **plaunch.environ,
        "PATH": os.pathsep.join(folders),
        "PYTHONPATH": str(installed),
        "PYTHONUNBUFFERED": "",  # plugins write whole lines
        "PYTEST_DEBUG_TEMPROOT": str(plaunch.folder),  # pytest removes folders of earlier runs
        # `pip install` needs no network, and does not change this environment.
        "PIP_TARGET": str(installed),
        "PIP_NO_DEPS": "1",
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads this as the value of build_isolation
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    printed = ""
    with contextlib.closing(Shell(repository, environ)) as shell:
        for block in BLOCK.finditer(with_free_ports(page.read_text())):
            kind, _, value = block["mark"].partition(": ")
            if kind == "file":
                (shell.folder / value).write_text(block["text"])
            elif kind == "run":
                expected = int(value.removeprefix("exit code ")) if value else 0
                code, printed = shell.run(block["text"], plaunch.folder / "ended-in")
                assert code == expected, f"{block['text']}\n{printed}"
            elif kind == "prints":
                lines = comparable(printed)
                for line in comparable(block["text"].replace("HOST", os.uname().nodename)):
                    assert line in lines, printed
            else:
                pytest.fail(f"{page.name} has an unknown mark {block['mark']!r}")
    after = contents(repository)
    assert {path: after.get(path) for path in before} == before


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


@pytest.mark.parametrize("option", dataclasses.fields(Timing), ids=lambda option: option.name)
def test_every_time_of_a_rendezvous_is_listed_with_its_default(option):
    page = (ROOT / "docs/multi-node.md").read_text()
    # Where there is no number, the default is another option's value.
    default = r"`\w+`" if option.default is None else f"{option.default:g}"
    row = rf"^\| `{option.name}` \| (s|heartbeats) \| .* \| {default} \|$"
    assert re.search(row, page, re.MULTILINE)


def test_every_option_of_c10d_is_listed():
    page = (ROOT / "docs/multi-node.md").read_text()
    own = page.partition("These are `c10d`'s own:")[2].partition("##")[0]
    listed = re.findall(r"^\| `(\w+)` \|", own, re.MULTILINE)
    assert sorted(listed) == sorted(plaunch_rendezvous_c10d.options.OPTIONS)


@pytest.mark.parametrize(
    ("contract", "heading"),
    [
        (plaunch_membership.RendezvousStore, "The store"),
        (plaunch.rendezvous.RendezvousHandler, "Plain handlers"),
        (plaunch.rendezvous.JobRendezvous, "Handlers that know the whole job"),
    ],
)
def test_every_method_of_a_contract_of_backends_is_described(contract, heading):
    page = (ROOT / "docs/writing-a-backend.md").read_text()
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    names = [name for name in vars(contract) if not name.startswith("_")]
    assert len(names) > 3
    for name in names:
        assert re.search(rf"`{name}\b", section), name


@pytest.mark.parametrize(
    "contract", [plaunch.rendezvous.RendezvousParameters, plaunch.rendezvous.JobSettings]
)
def test_every_parameter_of_a_factory_is_described(contract):
    page = (ROOT / "docs/writing-a-backend.md").read_text()
    section = page.partition("\n## The factory\n")[2].partition("\n## ")[0]
    for field in dataclasses.fields(contract):
        assert f"`{field.name}`" in section, field.name


def test_every_argument_of_the_handler_over_a_store_is_listed():
    page = (ROOT / "docs/writing-a-backend.md").read_text()
    arguments = inspect.signature(plaunch_membership.DynamicRendezvousHandler).parameters.values()
    names = [each.name for each in arguments if each.kind is not each.VAR_KEYWORD]
    fields = dataclasses.fields(plaunch_membership.StoreAccess)
    for name in [*names, *(field.name for field in fields)]:
        assert re.search(rf"^\| (`\w+`, )?`{name}`(, `\w+`)? \|", page, re.MULTILINE), name


def test_every_setting_of_the_conformance_suites_is_listed():
    page = (ROOT / "docs/writing-a-backend.md").read_text()
    table = page.partition("You can set these attributes on the classes:")[2].partition("###")[0]
    listed = re.findall(r"`(\w+)`", re.sub(r"\| [^|]* \|$", "", table, flags=re.MULTILINE))
    settings = {
        name
        for suite in (RendezvousConformance, RendezvousStoreConformance)
        for base in suite.__mro__
        for name, hint in vars(base).get("__annotations__", {}).items()
        if "ClassVar" in str(hint)
    }
    assert sorted(listed) == sorted(settings)


@pytest.mark.parametrize(
    ("page", "room"),
    [
        ("docs/contributing.md", "core/plaunch/rendezvous"),
        ("plugins/membership/README.md", "plugins/membership/plaunch_membership"),
    ],
)
def test_every_module_of_the_rendezvous_is_named(page, room):
    modules = {path.name for path in (ROOT / room).glob("[a-z]*.py")}
    table = (ROOT / page).read_text().partition("\n| module | ")[2]
    table = "\n".join(re.findall(r"^\| (.*?) \|", table.partition("\n\n")[0], re.MULTILINE))
    assert modules == set(re.findall(r"`(\w+\.py)`", table))


def test_links_between_pages_lead_somewhere():
    pages = [ROOT / "README.md", ROOT / "benchmarks/README.md", *ROOT.glob("docs/*.md")]
    for page in [*pages, *ROOT.glob("examples/*/README.md"), *ROOT.glob("plugins/*/README.md")]:
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^):]*))?\)", page.read_text()):
            found = page.parent / target if target else page
            assert found.exists(), f"{page.name} links to {target}"
            assert not anchor or anchor in anchors(found), f"{page.name} links to #{anchor}"


def anchors(page):
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


NO_MODULES = {*plaunch_events.SCHEMA, *LIFECYCLE.groups, *(g for k in KINDS for g in k.groups)}


def python_names(page):
    """Yield plaunch's dotted names in a page: in the text, and in the imports of its examples."""
    text = page.read_text()
    yield from re.findall(r"`(plaunch\w*(?:\.\w+)+)(?:\([^`]*\))?`", text)
    for block in re.findall(r"^```python.*?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("plaunch"):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize(
    "page",
    [page for page in ROOT.glob("docs/*.md") if page.name not in ("changelog.md", "hooks.md")],
    ids=lambda page: page.name,
)
def test_every_python_name_of_a_page_exists(page):
    for name in {*python_names(page)} - NO_MODULES - {"plaunch.toml"}:
        if not name.startswith("plaunch_example_"):
            assert pkgutil.resolve_name(name) is not None, name


def test_every_page_is_in_the_index():
    index = (ROOT / "docs/index.md").read_text()
    for page in ROOT.glob("docs/*.md"):
        assert page.name == "index.md" or f"({page.name})" in index, page.name
