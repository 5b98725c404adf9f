"""docs/compatibility.md agrees with plaunch, with the installed torch, and with the newest one.

Of the newest torch there is a record. `PLAUNCH_TEST_TORCH` names a wheel or a folder of its sources
with which the record is compared.
"""

from __future__ import annotations

import copy
import enum
import importlib
import inspect
import json
import os
import sys
import warnings
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("torch.distributed.elastic")
pytest.importorskip("torch.numa.binding", reason="the tables are about newer versions of torch")

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

# The modules of the tools import each other by name, as Sphinx does.
sys.path.insert(0, str(ROOT / "tools/docs"))
try:
    import compatibility as page
    import torch_surface
    import torchrun_names as names
finally:
    del sys.path[0]

PINNED = (ROOT / "constraints.txt").read_text().partition("\ntorch==")[2].split()[0]
of_the_page = pytest.mark.skipif(
    torch_surface.installed().version != PINNED, reason=f"the page is about torch {PINNED}"
)
METRICS = "torch.distributed.elastic.metrics.api"


@pytest.fixture(scope="module")
def made():
    made = page.Page()
    return made.text(), made.problems


def test_everything_of_torchrun_has_a_row_that_is_true(made):
    assert made[1] == []


@of_the_page
def test_the_page_is_the_one_that_is_checked_in(made):
    assert (DOCS / "compatibility.md").read_text() == made[0], f"run {page.COMMAND}"


def test_nothing_is_missing_without_a_reason():
    reasons = [*names.MISSING.values(), *names.OPTIONS_MISSING.values()]
    reasons += [more for _, status, more in names.VARIABLES.values() if status == "missing"]
    assert reasons
    assert all(len(reason.split()) > 3 for reason in reasons)


def test_the_statuses_of_variables():
    assert {status for _, status, _ in names.VARIABLES.values()} <= {"same", "different", "missing"}


def test_the_page_has_all_three_parts(made):
    text = made[0]
    for shown in ("`--rdzv-backend`", "`PET_NNODES`", "`TORCHELASTIC_RUN_ID`", "`elastic_launch`"):
        assert shown in text


@pytest.fixture
def newest():
    """A copy of the record of the newest torch, to be changed."""
    return copy.deepcopy(torch_surface.recorded(page.NEWEST).record)


def problems(record=None):
    newer = torch_surface.TorchSurface(record) if record else torch_surface.recorded(page.NEWEST)
    made = page.Page([torch_surface.installed(), newer])
    made.text()
    return made.problems


def problems_with(monkeypatch, table, **changes):
    monkeypatch.setattr(names, table, {**getattr(names, table), **changes})
    return problems()


def test_a_new_name_of_torch(newest):
    newest["modules"][METRICS]["brand_new"] = {"takes": ""}
    assert problems(newest) == [
        f"{METRICS}.brand_new is a public name of torch's launcher, "
        "which plaunch_torchrun.elastic.metrics does not have; add it there, or say in MISSING of "
        "torchrun_names.py why it is not"
    ]


def test_a_new_member_of_torch(newest):
    newest["modules"][METRICS]["MetricStream"]["members"]["brand_new"] = "self"
    assert problems(newest) == [f"{METRICS}.MetricStream of torch 2.15.0: there is no .brand_new"]


def test_a_new_option_of_torch(newest):
    newest["options"].append({**newest["options"][0], "names": ["--brand-new", "--brand_new"]})
    (problem,) = problems(newest)
    assert "--brand-new" in problem


def test_a_new_variable_of_torch(newest):
    newest["variables"].append("BRAND_NEW")
    assert problems(newest) == [
        "torch's launcher knows the variable BRAND_NEW; add a row to VARIABLES"
    ]


@of_the_page
def test_what_only_one_version_has(made):
    rows = [line for line in made[0].splitlines() if "| — |" in line]
    assert [row.split("`")[1] for row in rows] == [
        "--log-line-prefix-template",
        "--print-completion",
        "HIP_VISIBLE_DEVICES",
    ]


def test_a_row_of_a_name_that_torch_does_not_have(monkeypatch):
    (problem,) = problems_with(monkeypatch, "MISSING", **{"torch.nothing.at_all": "a reason"})
    assert problem == "torch.nothing.at_all has a row, but torch has no such name"


def test_a_row_of_a_name_that_is_there(monkeypatch):
    name = "torch.distributed.elastic.utils.api.get_socket_with_port"
    (problem,) = problems_with(monkeypatch, "MISSING", **{name: "a reason"})
    assert problem == f"{name} is in MISSING, and plaunch_torchrun.elastic.utils has it"


def test_a_row_of_a_variable_that_torch_does_not_have(monkeypatch):
    row = ("is read", "same", "")
    (problem,) = problems_with(monkeypatch, "VARIABLES", **{"NO_SUCH": row})
    assert problem == "NO_SUCH has a row in VARIABLES, but torch has no such variable"


def test_a_variable_without_a_row(monkeypatch):
    known = {
        name: row for name, row in names.VARIABLES.items() if name != "TORCHELASTIC_TIMER_FILE"
    }
    monkeypatch.setattr(names, "VARIABLES", known)
    assert problems() == [
        "torch's launcher knows the variable TORCHELASTIC_TIMER_FILE; add a row to VARIABLES"
    ]


class Colour(enum.Enum):
    RED = 1


class OtherColour(enum.Enum):
    RED = 2


class Theirs:
    def __init__(self, a, b=1): ...
    def act(self, a, *, b=None): ...
    @property
    def size(self): ...


Theirs.__module__ = "torch.made.up"


class Same:
    def __init__(self, a, b=1, c=2, *, d=3): ...
    def act(self, a, b=None): ...

    size = 0


class Order(Same):
    def __init__(self, b=1, a=2): ...


class Fewer(Same):
    def act(self, a): ...


class More(Same):
    def __init__(self, a, b, c): ...


class NoSize:
    def __init__(self, a, b=1): ...
    def act(self, a, b=None): ...


@pytest.mark.parametrize(
    ("theirs", "ours", "found"),
    [
        (Theirs, Same, []),
        (Theirs, Order, ["it does not take 'a' at 1", "it does not take 'b' at 2"]),
        (Theirs, Fewer, [".act does not take 'b'"]),
        (Theirs, More, ["it has no default for 'b'", "it also needs 'c'"]),
        (Theirs, NoSize, ["there is no .size"]),
        (Theirs, print, ["it is no class"]),
        ("a", "a", []),
        ("a", "b", ["it is 'b' instead of 'a'"]),
        (Colour, Colour, []),
        (Colour, OtherColour, ["there is no member RED=1"]),
        (lambda a, b=1: 0, lambda a, b=2, c=3: 0, []),
        (lambda a, b=1: 0, lambda *args, **kwargs: 0, []),
        (lambda a, b=1: 0, lambda a: 0, ["it does not take 'b'"]),
        (lambda a: 0, lambda a, b: 0, ["it also needs 'b'"]),
        (lambda a, b=1: 0, Same, []),
        (lambda a: 0, More, ["it also needs 'b'", "it also needs 'c'"]),
    ],
)
def test_parameters_of_torch_that_plaunch_lacks(theirs, ours, found):
    assert page.differences(theirs, ours) == found


def test_writing_the_page(tmp_path, monkeypatch):
    path = tmp_path / "page.md"
    assert page.main([str(path)]) == 0
    assert path.read_text().startswith("# Compatibility with torchrun\n")


def test_writing_it_with_something_wrong(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(names, "MISSING", {**names.MISSING, "torch.nothing": "a reason"})
    assert page.main([]) == 1
    assert "torch.nothing has a row" in capsys.readouterr().err


# --- what is read from sources --------------------------------------------------------------------


def theirs(module, name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(importlib.import_module(module), name)


def test_what_is_read_from_sources_is_what_an_import_gives():
    ours_alone = {  # torch's own is made by a call, or derives from a class outside of the launcher
        "MetricData",
        "EtcdStore",
        "ElasticDistributedSampler",
    }
    found = {}
    for module, known in torch_surface.installed().modules.items():
        if "etcd" in module:
            continue  # a stub without etcd's client
        for name, stand_in in known.items():
            real = theirs(module, name)
            both = [*page.differences(real, stand_in), *page.differences(stand_in, real)]
            if both and name not in ours_alone:
                found[f"{module}.{name}"] = both
    assert found == {}


def test_the_options_are_those_of_torchs_parser():
    parser = theirs("torch.distributed.run", "get_args_parser")()
    spelt = {action.dest: action for action in parser._actions if action.option_strings}
    del spelt["help"]
    options = torch_surface.installed().options
    assert list(options) == list(spelt)
    for dest, option in options.items():
        action = spelt[dest]
        assert option.default == action.default
        if dest != "print_completion":  # the shells are those of the installed shtab
            assert option.choices == list(action.choices or [])
        assert option.is_flag == (action.nargs == 0)
        assert option.is_flag or option.kind == (action.type or str).__name__


def test_the_record_of_the_newest_torch_is_complete():
    path = os.environ.get("PLAUNCH_TEST_TORCH")
    if not path:
        pytest.skip("no sources: PLAUNCH_TEST_TORCH names no wheel or folder of the newest torch")
    surface = torch_surface.read_sources(Path(path))
    assert surface.version == page.NEWEST
    assert surface.record == torch_surface.recorded(page.NEWEST).record, (
        f"run python tools/docs/torch_surface.py {path}"
    )


SOURCES = {
    "version.py": "__version__ = '3.1.0+cu130'",
    "distributed/run.py": (
        "def get_args_parser():\n"
        "    parser.add_argument('--count', '--a_count', action=env, type=int, default=3)\n"
        "    parser.add_argument('--on', action=check_env)\n"
        "    parser.add_argument('script')\n"
    ),
    "distributed/launch.py": "",
    "distributed/argparse_util.py": "",
    "numa/binding.py": "",
    "distributed/launcher/__init__.py": "",
    "distributed/elastic/__init__.py": "",
    "distributed/elastic/room.py": (
        "import os\n"
        "class _Base:\n"
        "    def rest(self): ...\n"
        "class Shown(_Base):\n"
        "    limit = 3\n"
        "    def __init__(self, a, b=1): ...\n"
        "    @property\n"
        "    def size(self): ...\n"
        "    @classmethod\n"
        "    def make(cls, x, *, y=2): ...\n"
        "@dataclass\n"
        "class Record:\n"
        "    name: str\n"
        "    size: int = 0\n"
        "    hidden: int = field(init=False)\n"
        "class Bad(Exception): ...\n"
        "def work(a, *more, **others): os.getenv('SOME_VARIABLE')\n"
    ),
}


@pytest.fixture
def sources(tmp_path):
    for name, text in SOURCES.items():
        file = tmp_path / "torch" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "torch"


def test_sources_in_a_folder_and_in_a_wheel(sources, tmp_path):
    with zipfile.ZipFile(tmp_path / "torch.whl", "w") as wheel:
        for name, text in SOURCES.items():
            wheel.writestr(f"torch/{name}", text)
    surface = torch_surface.read_sources(sources)
    assert surface.version == "3.1.0"
    for other in (tmp_path, tmp_path / "torch.whl"):
        assert torch_surface.read_sources(other).record == surface.record


def test_what_is_read_of_a_module(sources):
    surface = torch_surface.read_sources(sources)
    room = surface.modules["torch.distributed.elastic.room"]
    assert list(room) == ["Bad", "Record", "Shown", "work"]
    assert str(inspect.signature(room["Record"])) == "(name, size=Ellipsis)"
    assert str(inspect.signature(room["work"])) == "(a, *more, **others)"
    assert str(inspect.signature(room["Shown"].make)) == "(x, *, y=Ellipsis)"
    assert {"limit", "make", "rest", "size"} <= set(vars(room["Shown"]))
    assert issubclass(room["Bad"], Exception)
    assert surface.variables == {"SOME_VARIABLE"}
    assert list(surface.options) == ["count", "on"]
    assert (surface.options["count"].default, surface.options["on"].is_flag) == (3, True)


def test_recording_a_version(sources, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch_surface, "DATA", tmp_path)
    assert torch_surface.main([]) == 2
    assert torch_surface.main([str(sources)]) == 0
    path = tmp_path / "torch-3.1.0.json"
    assert capsys.readouterr().out == f"{path}\n"
    assert json.loads(path.read_text()) == torch_surface.recorded("3.1.0").record
