"""docs/compatibility.md agrees with plaunch and with the torch that is installed."""

from __future__ import annotations

import enum
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch.distributed.elastic")

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

# The modules of the tools import each other by name, as Sphinx does.
sys.path.insert(0, str(ROOT / "tools/docs"))
try:
    import compatibility as page
    import torchrun_names as names
finally:
    del sys.path[0]


@pytest.fixture(scope="module")
def made():
    made = page.Page()
    return made.text(), made.problems


def test_everything_of_torchrun_has_a_row_that_is_true(made):
    assert made[1] == []


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


def problems():
    made = page.Page()
    made.text()
    return made.problems


def problems_with(monkeypatch, table, **changes):
    monkeypatch.setattr(names, table, {**getattr(names, table), **changes})
    return problems()


def test_a_new_name_of_torch(monkeypatch):
    import torch.distributed.elastic.metrics.api as module

    def brand_new():
        pass

    monkeypatch.setattr(module, "brand_new", brand_new, raising=False)
    brand_new.__module__ = module.__name__
    monkeypatch.setattr(module, "__all__", [*module.__all__, "brand_new"])
    assert problems() == [
        "torch.distributed.elastic.metrics.api.brand_new is a public name of torch's launcher, "
        "which plaunch_torchrun.elastic.metrics does not have; add it there, or say in MISSING of "
        "torchrun_names.py why it is not"
    ]


def test_a_new_option_of_torch(monkeypatch):
    import torch.distributed.run as module

    make = module.get_args_parser

    def get_args_parser():
        parser = make()
        parser.add_argument("--brand-new")
        return parser

    get_args_parser.__module__ = module.__name__
    monkeypatch.setattr(module, "get_args_parser", get_args_parser)
    (problem,) = problems()
    assert "--brand-new" in problem


def test_a_row_of_a_name_that_torch_does_not_have(monkeypatch):
    (problem,) = problems_with(monkeypatch, "MISSING", **{"torch.nothing.at_all": "a reason"})
    assert problem == "torch.nothing.at_all has a row, but torch has no such name"


def test_a_row_of_a_name_that_is_there(monkeypatch):
    name = "torch.distributed.elastic.utils.api.get_socket_with_port"
    (problem,) = problems_with(monkeypatch, "MISSING", **{name: "a reason"})
    assert problem == f"{name} is in MISSING, and plaunch_torchrun.elastic.utils has it"


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
def test_what_a_caller_of_theirs_misses_in_ours(theirs, ours, found):
    assert page.differences(theirs, ours) == found


def test_writing_the_page(tmp_path, monkeypatch):
    path = tmp_path / "page.md"
    assert page.main([str(path)]) == 0
    assert path.read_text().startswith("# Compatibility with torchrun\n")


def test_writing_it_with_something_wrong(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(names, "MISSING", {**names.MISSING, "torch.nothing": "a reason"})
    assert page.main([]) == 1
    assert "torch.nothing has a row" in capsys.readouterr().err
