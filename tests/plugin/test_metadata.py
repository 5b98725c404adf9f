"""The direct scan of installed metadata, held to the answer of importlib_metadata."""

from __future__ import annotations

import gc
import logging
import re
import sys
import warnings
import zipfile
from pathlib import Path

import importlib_metadata
import pytest
from plaunch.plugin.kinds import GROUPS
from plaunch.plugin.metadata import Distribution, EntryPoint, normalise, parse_entry_points, scan

GROUP = "plaunch.plugins"


def write(root: Path, info: str, entry_points: str | None = None, name: str = "") -> Path:
    folder = root / info
    folder.mkdir(parents=True)
    if name:
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9\n")
    if entry_points is not None:
        (folder / "entry_points.txt").write_text(entry_points)
    return folder


def ours(*roots: Path, groups=GROUPS) -> list[tuple[str, str, str]]:
    return [(e.group, e.name, e.value) for e in scan(groups, [str(root) for root in roots])]


def reference(monkeypatch: pytest.MonkeyPatch, *roots: Path) -> list[tuple[str, str, str]]:
    monkeypatch.setattr(sys, "path", [str(root) for root in roots])
    found = importlib_metadata.entry_points()
    return sorted((e.group, e.name, e.value) for e in found if e.group in GROUPS)


def test_agrees_with_importlib_metadata_on_this_environment() -> None:
    groups = {entry.group for entry in importlib_metadata.entry_points()}
    expected = sorted(
        (entry.group, entry.name, entry.value, entry.dist.version)
        for entry in importlib_metadata.entry_points()
    )
    assert len(expected) > 10
    found = [(e.group, e.name, e.value, e.distribution.version) for e in scan(groups, sys.path)]
    assert sorted(found) == expected


SAME_ANSWER = {
    "plain": {"a-1.dist-info": f"[{GROUP}]\nx = a:b\n"},
    "egg-info folder": {"a-1-py3.11.egg-info": f"[{GROUP}]\nx = a:b\n"},
    "no version in the folder's name": {"a.dist-info": f"[{GROUP}]\nx = a:b\n"},
    "capitals in the suffix": {"a-1.DIST-INFO": f"[{GROUP}]\nx = a:b\n"},
    "comments and blank lines": {"a-1.dist-info": f"# x\n\n[{GROUP}]\n  # y = z\n\n  x = a:b  \n"},
    "a comment after a value belongs to it": {"a-1.dist-info": f"[{GROUP}]\nx = a:b # no\n"},
    "extras": {"a-1.dist-info": f"[{GROUP}]\nx = a:b [slow,fast]\n"},
    "no spaces": {"a-1.dist-info": f"[{GROUP}]\nx=a:b\n"},
    "an equals sign in the value": {"a-1.dist-info": f"[{GROUP}]\nx = a=b\n"},
    "nothing after the equals sign": {"a-1.dist-info": f"[{GROUP}]\nx =\n"},
    "a name that is given twice": {"a-1.dist-info": f"[{GROUP}]\nx = a:b\nx = a:c\n"},
    "a group that is given twice": {"a-1.dist-info": f"[{GROUP}]\nx = a:b\n[{GROUP}]\ny = a:c\n"},
    "lines before any group": {"a-1.dist-info": f"x = a:b\n[{GROUP}]\ny = a:c\n"},
    "other groups": {"a-1.dist-info": f"[console_scripts]\nx = a:b\n[{GROUP}]\ny = a:c\n"},
    "no entry points": {"a-1.dist-info": None},
    "an empty file": {"a-1.dist-info": ""},
    "carriage returns": {"a-1.dist-info": f"[{GROUP}]\r\nx = a:b\r\n"},
    "two distributions": {"b-1.dist-info": f"[{GROUP}]\nx = b\n", "a-1.dist-info": "[x]\n"},
    "not metadata": {"a-1.dist-infos": f"[{GROUP}]\nx = a:b\n"},
}


@pytest.mark.parametrize("folders", SAME_ANSWER.values(), ids=SAME_ANSWER)
def test_agrees_with_importlib_metadata(tmp_path, monkeypatch, folders) -> None:
    for info, text in folders.items():
        write(tmp_path, info, text, name="x")
    try:
        expected = reference(monkeypatch, tmp_path)
    except ValueError:  # of newer versions, for all packages if one has a malformed reference
        (entry,) = ours(tmp_path)
        with pytest.raises(ValueError, match=re.escape(entry[2]) + "$"):
            EntryPoint(*entry, Distribution("x", "x", "9")).target()
    else:
        assert sorted(ours(tmp_path)) == expected


TWICE = {
    "the same name": ("a-1.dist-info", "a-2.dist-info"),
    "another case": ("Acme-1.dist-info", "acme-2.dist-info"),
    "dots, dashes and underscores": ("a.b_c-1.dist-info", "a_b_c-2.dist-info"),
    "runs of them": ("a__b-1.dist-info", "a._b-2.dist-info"),
    "both kinds of folder": ("acme-1.egg-info", "acme-2.dist-info"),
    "no version": ("acme.egg-info", "acme-2.dist-info"),
}


@pytest.mark.parametrize(("first", "second"), TWICE.values(), ids=TWICE)
def test_the_first_distribution_of_a_name_on_the_path_wins(
    tmp_path, monkeypatch, first, second
) -> None:
    roots = tmp_path / "1", tmp_path / "2"
    write(roots[0], first, f"[{GROUP}]\nx = first\n", name="a")
    write(roots[1], second, f"[{GROUP}]\nx = second\n", name="a")
    assert ours(*roots) == [(GROUP, "x", "first")] == reference(monkeypatch, *roots)


def test_a_leftover_without_metadata_does_not_hide_the_real_one(tmp_path) -> None:
    # As importlib_metadata has it today; its older versions take the leftover.
    roots = tmp_path / "1", tmp_path / "2"
    write(roots[0], "a-1.dist-info", f"[{GROUP}]\nx = leftover\n")
    write(roots[1], "a-2.dist-info", f"[{GROUP}]\nx = real\n", name="a")
    assert ours(*roots) == [(GROUP, "x", "real")]


def test_what_is_no_folder_is_passed_over(tmp_path, monkeypatch) -> None:
    (tmp_path / "a-1.egg-info").write_text("Name: a\n")
    monkeypatch.chdir(tmp_path)
    assert scan(GROUPS, ["", str(tmp_path), str(tmp_path / "missing")]) == []


def test_the_empty_path_is_the_current_folder(tmp_path, monkeypatch) -> None:
    write(tmp_path, "a-1.dist-info", f"[{GROUP}]\nx = a\n", name="a")
    monkeypatch.chdir(tmp_path)
    assert [entry.name for entry in scan(GROUPS, [""])] == ["x"]


def test_a_malformed_line_is_reported_and_skipped(tmp_path, caplog) -> None:
    # importlib_metadata raises TypeError here, which would end every launch.
    write(tmp_path, "a-1.dist-info", f"[{GROUP}]\ngarbage\nx = a:b\n[other]\ngarbage\n")
    with caplog.at_level(logging.WARNING, "plaunch"):
        assert ours(tmp_path) == [(GROUP, "x", "a:b")]
    (record,) = caplog.records
    assert "'garbage'" in record.getMessage()
    assert "a-1.dist-info" in record.getMessage()


def test_bytes_that_are_not_text_affect_only_their_entry(tmp_path) -> None:
    folder = write(tmp_path, "a-1.dist-info")
    (folder / "entry_points.txt").write_bytes(b"[%s]\nx = \xff\xfe\ny = a:b\n" % GROUP.encode())
    assert [entry.name for entry in scan(GROUPS, [str(tmp_path)])] == ["x", "y"]


def test_entry_points_that_cannot_be_read_are_reported(tmp_path, caplog) -> None:
    # A folder in the file's place fails for root as well, which file modes do not.
    (write(tmp_path, "a-1.dist-info") / "entry_points.txt").mkdir()
    write(tmp_path, "b-1.dist-info", f"[{GROUP}]\nx = b\n")
    with caplog.at_level(logging.WARNING, "plaunch"):
        assert ours(tmp_path) == [(GROUP, "x", "b")]
    assert "a-1.dist-info" in caplog.text


def test_the_result_is_sorted_by_group_name_and_distribution(tmp_path) -> None:
    write(tmp_path, "b-1.dist-info", f"[{GROUP}]\ny = b\nx = b\n[plaunch.device_counts]\nz = b\n")
    write(tmp_path, "a-1.dist-info", f"[{GROUP}]\ny = a\n")
    assert ours(tmp_path) == [
        ("plaunch.device_counts", "z", "b"),
        (GROUP, "x", "b"),
        (GROUP, "y", "a"),
        (GROUP, "y", "b"),
    ]


# --- where only importlib_metadata can tell -------------------------------------------------------


def make_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("z-3.dist-info/METADATA", "Metadata-Version: 2.1\nName: z-z\nVersion: 3\n")
        archive.writestr("z-3.dist-info/entry_points.txt", f"[{GROUP}]\nzipped = z:z\n")


@pytest.fixture
def zipped(tmp_path) -> str:
    """A zip with a distribution.

    importlib_metadata leaves it open to the garbage collector, which would warn in another test.
    """
    make_zip(tmp_path / "z.zip")
    yield str(tmp_path / "z.zip")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def test_a_zip_on_the_path_is_read(tmp_path, zipped) -> None:
    write(tmp_path / "plain", "a-1.dist-info", f"[{GROUP}]\nx = a\n", name="a")
    found = scan(GROUPS, [zipped, str(tmp_path / "plain")])
    assert [(e.name, e.distribution.name, e.distribution.version) for e in found] == [
        ("x", "a", "9"),
        ("zipped", "z-z", "3"),
    ]


def test_an_egg_on_the_path_is_read(tmp_path) -> None:
    egg = tmp_path / "acme-1-py3.11.egg"
    write(egg, "EGG-INFO", f"[{GROUP}]\nx = acme\n")
    (egg / "EGG-INFO" / "PKG-INFO").write_text("Metadata-Version: 1.0\nName: acme\nVersion: 1\n")
    (entry,) = scan(GROUPS, [str(egg)])
    assert (entry.name, entry.distribution.key) == ("x", "acme")


# A zip on the path forces the slow way.


def test_the_slow_way_survives_what_the_fast_one_does(tmp_path, zipped, caplog) -> None:
    write(tmp_path / "p", "a-1.dist-info", f"[{GROUP}]\ngarbage\n", name="a")
    write(tmp_path / "p", "b-1.dist-info", f"[{GROUP}]\nleftover = b\n")
    write(tmp_path / "q", "b-2.dist-info", f"[{GROUP}]\nreal = b\n", name="b")
    with caplog.at_level(logging.WARNING, "plaunch"):
        found = scan(GROUPS, [zipped, str(tmp_path / "p"), str(tmp_path / "q")])
    assert [entry.name for entry in found] == ["real", "zipped"]
    assert "distribution a " in caplog.text


def test_the_slow_way_continues_behind_a_distribution_that_is_there_twice(tmp_path, zipped) -> None:
    for number, names in enumerate((["a"], ["a"], ["b"]), start=1):
        for name in names:
            info = f"{name}-{number}.dist-info"
            write(tmp_path / str(number), info, f"[{GROUP}]\n{name} = {number}\n", name=name)
    found = scan(GROUPS, [zipped, *(str(tmp_path / name) for name in "123")])
    assert [(entry.name, entry.value) for entry in found if entry.name != "zipped"] == [
        ("a", "1"),
        ("b", "3"),
    ]


def test_a_distribution_without_a_name_goes_by_its_folder(tmp_path, zipped) -> None:
    write(tmp_path / "p", "b_b-1.dist-info", f"[{GROUP}]\nx = b\n")
    found = scan(GROUPS, [zipped, str(tmp_path / "p")])
    assert [e.distribution.key for e in found if e.name == "x"] == ["b_b"]


class Finder(importlib_metadata.DistributionFinder):
    """Some tool's finder that knows one distribution of its own."""

    def find_distributions(self, context=None):
        class Odd(importlib_metadata.Distribution):
            def read_text(self, filename):
                return {
                    "METADATA": "Metadata-Version: 2.1\nName: odd\nVersion: 5\n",
                    "entry_points.txt": f"[{GROUP}]\nodd = odd:plugin\n",
                }.get(filename)

            def locate_file(self, path):
                return Path(path)

        return [Odd()]


def test_other_finders_are_searched(monkeypatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    assert [e.distribution.version for e in scan(GROUPS) if e.name == "odd"] == ["5"]


def test_a_finder_without_distributions_changes_nothing(monkeypatch) -> None:
    class EditableFinder:
        @staticmethod
        def find_spec(*args):
            return None

    monkeypatch.setattr(sys, "meta_path", [EditableFinder, *sys.meta_path])
    monkeypatch.setitem(sys.modules, "importlib_metadata", None)  # it cannot be imported
    assert any(entry.distribution.key == "plaunch" for entry in scan(GROUPS))


# --- names and values -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["A.b-C", "a_b_c", "a--b__c", "A-B-C", "a.-_b_c"])
def test_normalise(name: str) -> None:
    assert normalise(name) == "a_b_c"


# By folder and by the name in the metadata, if there are any.
NAMES = {
    ("acme_plaunch-1.dist-info", "Acme.Plaunch"): ("Acme.Plaunch", "9", "acme_plaunch"),
    ("acme_x-1.5.dist-info", ""): ("acme_x", "1.5", "acme_x"),
    ("acme_x-1.5-py3.11.egg-info", ""): ("acme_x", "1.5", "acme_x"),
    ("acme_x.egg-info", ""): ("acme_x", "", "acme_x"),
}


@pytest.mark.parametrize("info", NAMES, ids=str)
def test_name_and_version_are_those_of_the_metadata_or_else_of_the_folder(tmp_path, info) -> None:
    folder, name = info
    write(tmp_path, folder, f"[{GROUP}]\nx = a\n", name=name)
    ((*_, found),) = scan(GROUPS, [str(tmp_path)])
    assert (found.name, found.version, found.key) == NAMES[info]


VALUES = {
    "module": ("module", "", ()),
    "pkg.module": ("pkg.module", "", ()),
    "pkg.module:attr": ("pkg.module", "attr", ()),
    "pkg.module:obj.attr": ("pkg.module", "obj.attr", ()),
    "pkg : attr": ("pkg", "attr", ()),
    "pkg:attr [one, two-three] ": ("pkg", "attr", ("one", "two-three")),
    "pkg [one]": ("pkg", "", ("one",)),
    "pkg:attr[]": ("pkg", "attr", ()),
}


@pytest.mark.parametrize(("value", "expected"), VALUES.items())
def test_target(value, expected) -> None:
    assert tuple(EntryPoint(GROUP, "x", value, Distribution("a", "a", "1")).target()) == expected


@pytest.mark.parametrize(
    "value", ["", ":attr", "pkg:", "pkg:a b", "my-pkg:attr", "pkg:attr [one", "pkg:a:b", "pkg # x"]
)
def test_target_of_another_form_is_an_error(value) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(value)}$"):
        EntryPoint(GROUP, "x", value, Distribution("a", "a", "1")).target()


def test_parse_entry_points_yields_wanted_groups_only() -> None:
    text = "[a]\nx = 1\n[b]\ny = 2\n"
    assert list(parse_entry_points(text, "file", {"b"})) == [("b", "y", "2")]
