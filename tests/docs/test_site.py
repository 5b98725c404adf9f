"""The site is built without a warning, and has every name that there is to look up.

Sphinx warns of links, anchors and names that lead nowhere, and `-W` makes errors of that.
"""

from __future__ import annotations

import fcntl
import functools
import html
import json
import os
import re
import sys
from pathlib import Path

import plaunch.errors
import plaunch_events
import pytest
from plaunch.cli.options import OPTIONS

from helpers.programs import run_python

pytest.importorskip("sphinx")

ROOT = Path(__file__).parents[2]
TIMEOUT = 220.0  # seconds for a build, which needs more than half a minute of CPU time
# What an engineer on call types, and the page that must come first.
SEARCHES = {
    "NCCL timeout": "docs/collective-failures",
    "NCCL": "docs/collective-failures",
    "connection closed by peer": "docs/collective-failures",
    "out of memory": "docs/debugging",
    "killed": "docs/debugging",
    "stuck": "docs/hangs",
    "slow": "docs/debugging",
    "port in use": "docs/errors",
    "113": "docs/errors",
}

# The modules of the tools import each other by name, as Sphinx does.
sys.path.insert(0, str(ROOT / "tools/docs"))
try:
    import architecture
    import blocks
    import names
    import navigation
    import reference
finally:
    del sys.path[0]


def build(source, out):
    words = ["-c", str(ROOT / "tools/docs"), "-q", "-W", "--keep-going", str(source), str(out)]
    return run_python("-m", "sphinx", *words, timeout=TIMEOUT)


class Site:
    def __init__(self, folder):
        self.folder = folder
        self._texts = {}

    def source(self, page):
        return (self.folder / page).read_text()

    def text(self, page):
        """What a reader sees of a page, without the navigation around it."""
        if page not in self._texts:
            body = self.source(page).partition('role="main"')[2].partition("</article>")[0]
            words = html.unescape(re.sub(r"<[^>]*>", " ", body)).split()
            self._texts[page] = " ".join(words)
        return self._texts[page]

    def anchors(self, page):
        return set(re.findall(r'\bid="([^"]+)"', self.source(page)))

    def best(self, words):
        """The pages that the search shows first: those with the entry of the index most like it.

        No other kind of result has a score as high as an entry that has more than half of it.
        """
        index = self.index
        scores = {}
        for entry, places in index["indexentries"].items():
            if words.lower() in entry and len(words) >= len(entry) / 2:
                for number, *_ in places:
                    page = index["docnames"][number]
                    scores[page] = max(scores.get(page, 0.0), len(words) / len(entry))
        return [page for page, score in scores.items() if score == max(scores.values())]

    @functools.cached_property
    def index(self):
        """The index of the search."""
        text = self.source("searchindex.js").removeprefix("Search.setIndex(").removesuffix(")")
        return json.loads(text)

    def found(self, table, word):
        """The pages that the search has for one word, in one of its tables."""
        index = self.index
        places = index[table].get(word, [])
        places = [places] if isinstance(places, int) else places
        numbers = [place if isinstance(place, int) else place[0] for place in places]
        return [index["docnames"][number] for number in numbers]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, which the first of the processes that run tests builds for all of them."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, built = shared / "site", shared / "site-is-built"
    with (shared / "site-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            done = build(ROOT, folder)
            assert done.returncode == 0, done.stdout + done.stderr
            built.touch()
    return Site(folder)


@pytest.mark.slow
class TestSite:
    @pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.dest)
    def test_has_every_option_in_both_spellings_with_variable_and_choices(self, site, option):
        text = site.text("docs/command-line.html")
        assert option.names[-1].lstrip("-") in site.anchors("docs/command-line.html")
        for word in [*reference.spellings(option), option.variable, *option.choices]:
            assert re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text), word

    def test_has_every_hook_with_its_arguments(self, site):
        text = re.sub(r"\W+", " ", site.text("docs/hooks.html"))
        specifications = dict(reference.specifications())
        assert "plaunch_worker_exited" in specifications
        for name, function in specifications.items():
            arguments = [key for key in function.__annotations__ if key != "return"]
            words = "".join(rf" {key} \w.*?" for key in arguments)
            assert re.search(rf"def {name}{words}", text), name

    @pytest.mark.parametrize("code", plaunch.errors.ExitCode, ids=lambda code: code.name)
    def test_has_every_exit_code(self, site, code):
        assert f" {code.value} {code.name} " in site.text("docs/errors.html")

    @pytest.mark.parametrize("event", plaunch_events.SCHEMA)
    def test_has_every_event(self, site, event):
        assert event in site.text("docs/events.html")

    def test_has_every_public_name(self, site):
        page = (ROOT / "docs/api.md").read_text()
        anchors = site.anchors("docs/api.html")
        text = site.text("docs/api.html")
        packages = names.packages(page)
        assert {"plaunch", "plaunch.agent", "plaunch.testing"} <= set(packages)
        for package in packages:
            public = names.public_names(package)
            assert public, package
            for name in public:
                path = f"{package}.{name}"
                assert path in anchors or f"{path} is " in text, path

    def test_shows_signatures_and_docstrings(self, site):
        text = site.text("docs/api.html")
        assert "launch_agent ( config : LaunchConfig" in text
        assert "what to run" not in site.text("docs/hooks.html")
        assert "the workers of this node and wait for the end" in text

    def test_has_every_page_in_the_navigation_in_the_order_of_the_index(self, site):
        index = (ROOT / "docs/index.md").read_text()
        tree = site.source("docs/index.html").partition("sidebar-tree")[2].partition("</aside>")[0]
        shown = re.findall(r'class="caption-text">([^<]+)', tree)
        assert len(shown) == 6
        assert shown == [heading for heading, _ in navigation.sections(index)]
        assert shown[0] == "Getting started"
        links = re.findall(r'class="reference internal" href="([^"#]+)"', tree)
        assert {f"{page.stem}.html" for page in (ROOT / "docs").glob("*.md")} <= {
            "index.html",
            *links,
        }

    @pytest.mark.parametrize("code", plaunch.errors.ExitCode)
    def test_search_finds_an_exit_code(self, site, code):
        # A number is not a word to the search; it is found if it is an entry of the index.
        assert site.found("indexentries", str(code.value)) == ["docs/errors"]

    @pytest.mark.parametrize(("words", "page"), SEARCHES.items())
    def test_search_finds_first(self, site, words, page):
        assert site.best(words) == [page]

    def test_search_finds_multi_node(self, site):
        assert "docs/multi-node" in site.found("titleterms", "multi")
        for word in ("multi-node", "multinode"):
            assert site.found("indexentries", word) == ["docs/multi-node"]

    def test_code_blocks_have_names_of_files_and_copy_buttons(self, site):
        page = site.source("docs/tutorial.html")
        assert re.findall(r'class="caption-text">([^<]+\.\w+)<', page) == [
            *re.findall("<!-- file: (.+) -->", (ROOT / "docs/tutorial.md").read_text())
        ]
        assert "copybutton.js" in page

    def test_needs_no_network(self, site):
        for page in site.folder.rglob("*.html"):
            loaded = re.findall(r"<(?:script|link|img|iframe)\b[^>]*", page.read_text())
            assert loaded or page.parent == site.folder
            for tag in loaded:
                assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", tag), tag
        for style in site.folder.rglob("*.css"):
            assert not re.search(r"@import|url\(['\"]?(?:https?:)?//", style.read_text()), style

    def test_begins_at_the_start_page(self, site):
        (target,) = re.findall(r"url=([^\"]+)", site.source("index.html"))
        assert (site.folder / target).exists()

    def test_has_the_files_that_pages_link_to(self, site):
        assert list((site.folder / "_downloads").rglob("train_ddp.py"))
        assert list((site.folder / "_images").glob("architecture.svg"))


FAULTS = {
    "[a page](nothing-1.md)": "'nothing-1.md'",
    "[a file](../nothing-2.txt)": "'../nothing-2.txt'",
    "[a part](#nothing-3)": "'nothing-3'",
    "[a part](other.md#nothing-4)": "'nothing-4'",
    "```{eval-rst}\n:py:class:`plaunch.agent.Nothing5`\n```": "plaunch.agent.Nothing5",
    "![a picture](nothing-6.svg)": "nothing-6.svg",
    "#### Three levels below the title": "Non-consecutive header level",
}


@pytest.mark.slow
def test_what_leads_nowhere_breaks_the_build(tmp_path):
    docs = tmp_path / "source/docs"
    docs.mkdir(parents=True)
    faults = "\n\n".join(FAULTS)
    (docs / "index.md").write_text(f"# Start\n\n{faults}\n\n## More\n\n[other](other.md)\n")
    (docs / "other.md").write_text("# Other\n")
    (docs / "lost.md").write_text("# A page that the index does not have\n")
    done = build(tmp_path / "source", tmp_path / "out")
    assert done.returncode == 1
    for complaint in [*FAULTS.values(), "lost.md: WARNING: document isn't included"]:
        assert complaint in done.stderr
    assert done.stderr.count("WARNING") == len(FAULTS) + 1


@pytest.mark.parametrize("page", reference.PAGES)
def test_pages_that_are_made_of_the_code_are_up_to_date(page):
    text = reference.PAGES[page]()
    assert (ROOT / "docs" / page).read_text() == text, f"run {reference.COMMAND}"


@pytest.fixture(scope="module")
def imports():
    return architecture.imports()


def test_the_diagram_shows_the_imports_of_today(imports):
    assert architecture.TARGET.read_text() == architecture.draw(imports), (
        "run python tools/docs/architecture.py"
    )


def test_the_diagram_has_every_folder_of_the_core_and_every_plugin(imports):
    folders = {path.name for path in (ROOT / "core/plaunch").iterdir() if path.is_dir()}
    assert folders - {"__pycache__"} <= set(architecture.ROOMS)
    packages = {path.name for path in (ROOT / "plugins").glob("*/plaunch_*")}
    found, arrows = architecture.boxes(architecture.reduced(imports))
    names = {line for box in found.values() for line in (box.title, *box.lines)}
    assert {name.removeprefix("plaunch_") for name in packages} <= {
        name.removeprefix("plaunch_") for name in names
    }
    assert arrows["cli"] == {"launch"}
    assert arrows[architecture.GROUND] == set()


def test_an_arrow_that_follows_from_others_is_left_out():
    graph = {"a": {"b", "c", "d"}, "b": {"c"}, "c": set(), "d": set()}
    assert architecture.reduced(graph) == {"a": {"b", "d"}, "b": {"c"}, "c": set(), "d": set()}


def test_imports_in_a_circle_cannot_be_drawn():
    with pytest.raises(ValueError, match="a -> b -> a"):
        architecture.reduced({"a": {"b"}, "b": {"a"}})


def test_the_modules_of_the_architecture_exist():
    page = (ROOT / "docs/architecture.md").read_text()
    modules = re.findall(
        r"`((?:agent|cli|plugin|process|rendezvous|launch)\b[/\w]*(?:/|\.py\b)[\w.]*)`", page
    )
    assert len(modules) > 12
    for module in modules:
        assert (ROOT / "core/plaunch" / module).exists(), module


def first_column(page, heading):
    """Return the names in the first columns of the tables in a section."""
    section = re.split(r"\n## ", page.partition(f"\n## {heading}\n")[2], maxsplit=1)[0]
    rows = re.findall(r"^\| (.*?) \|", section, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`(\w+)(?:\.py)?`", row)]


def modules_of(room):
    """Return the modules and folders of a room."""
    paths = (ROOT / "core/plaunch" / room).iterdir()
    return sorted(
        path.stem for path in paths if path.suffix == ".py" or (path / "__init__.py").exists()
    )


@pytest.mark.parametrize(
    ("room", "heading"),
    [
        ("agent", "The room of the agent"),
        ("process", "The room of processes"),
        ("plugin", "How plugins are found and called"),
    ],
)
def test_the_table_of_a_room_has_its_modules(room, heading):
    page = (ROOT / "docs/architecture.md").read_text()
    assert sorted(first_column(page, heading)) == [
        name for name in modules_of(room) if name != "__init__"
    ]


@pytest.mark.parametrize("room", ["", "cli", "launch", "rendezvous"])
def test_each_module_of_a_room_is_named(room):
    page = (ROOT / "docs/contributing.md").read_text()
    section = page.partition("\n## Folders\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)(?:\.py)?`", section))
    assert {name for name in modules_of(room) if not name.startswith("_")} <= named


def test_the_text_of_the_diagram_is_inside_its_boxes(imports):
    for box in architecture.boxes(architecture.reduced(imports))[0].values():
        for line in (box.title, *box.lines):
            assert 8 + len(line) * 6.6 < architecture._BOX, line


VARIABLE = re.compile(
    r"""["']((?:PLAUNCH|TORCHELASTIC|TORCH)_[A-Z_]+[A-Z])["']|^    "([A-Z]+_[A-Z_]+)": """,
    re.MULTILINE,
)


def test_every_variable_of_the_code_is_listed():
    page = (ROOT / "docs/environment.md").read_text()
    found = set()
    for folder in ("core", "plugins"):
        for path in (ROOT / folder).rglob("*.py"):
            if "testing" not in path.relative_to(ROOT).parts:
                found |= {a for a, _ in VARIABLE.findall(path.read_text()) if a}
    given = (ROOT / "core/plaunch/agent/worker.py").read_text()
    found |= set(re.findall(r'^        "([A-Z_]+)": ', given, re.MULTILINE))
    assert {"PLAUNCH_DEBUG", "TORCHELASTIC_RUN_ID", "LOCAL_RANK"} <= found
    assert sorted(name for name in found if f"`{name}`" not in page) == []


@pytest.mark.parametrize(
    ("markdown", "rst"),
    [
        ("plain", "plain"),
        ("a `name` here", "a ``name`` here"),
        ("two `Event`s", r"two ``Event``\ s"),
        ("`*args` and **kwargs", r"``*args`` and \*\*kwargs"),
        ("stars_ and | bars", r"stars\_ and \| bars"),
        ("snake_case stays", "snake_case stays"),
        ("`split over\nlines`", "``split over\nlines``"),
    ],
)
def test_docstrings_are_read_as_markdown(markdown, rst):
    assert names.to_rst(markdown) == rst


@pytest.mark.parametrize(
    ("page", "shown"),
    [
        ("<!-- file: a.py -->\n```python\n", "```{code-block} python\n:caption: a.py\n\n"),
        ("<!-- file: a.py -->\n\n```sh\n", "```{code-block} sh\n:caption: a.py\n\n"),
        ('```toml title="b/c.toml"\n', "```{code-block} toml\n:caption: b/c.toml\n\n"),
        ("<!-- run -->\n```sh\n", "<!-- run -->\n```sh\n"),
    ],
)
def test_names_of_files_become_captions(page, shown):
    assert blocks.with_captions(f"text\n\n{page}code\n```\n") == f"text\n\n{shown}code\n```\n"


def test_exit_codes_are_those_of_the_table():
    page = (
        "# E\n\n## Exit codes\n\n| code |\n|---|\n| 0 | 7 |\n| 113 | 99 s |\n"
        "| 128 + n | 130 for Ctrl-C, 5 times |\n\n## More\n\n| 4 |\n"
    )
    assert blocks.exit_codes(page) == [0, 113, 130]


def test_a_page_is_in_the_navigation_where_it_is_named_first():
    index = (
        "# S\n[no](no.md)\n## A\n[x](x.md) [y](y.md#part)\n## B\n[x](x.md) [z](../z/R.md)\n## C\n"
    )
    assert list(navigation.sections(index)) == [("A", ["x.md"]), ("B", ["../z/R.md"])]
