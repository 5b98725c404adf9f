"""Opening failure bundles in the report, including forged ones."""

from __future__ import annotations

import contextlib
import io
import json
import struct
import zipfile

import pytest
from plaunch.errors import UsageError
from plaunch_report import bundles, cli

from helpers.programs import run_python


@pytest.fixture
def pack(tmp_path):
    """Writes a bundle of these files, and returns its path."""

    def pack(files=(), /, **by_name):
        path = tmp_path / "failure-0.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in [*files, *by_name.items()]:
                archive.writestr(name, data)
        return str(path)

    return pack


@pytest.fixture
def events(runs):
    """What the agents of a run wrote."""
    runs.elastic()
    return "".join(path.read_text() for path in sorted(runs.folder.rglob("*.jsonl")))


def run(argv, capsys):
    code = cli.main(argv)
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_facts_are_those_of_the_events(pack, events, capsys):
    path = pack([("events.jsonl", events), ("report.txt", "it failed\n")])
    code, out, err = run([path, "--json"], capsys)
    assert (code, err) == (0, "")
    assert json.loads(out)["run_id"] == "job"


def test_a_bundle_and_a_folder_are_one_report(runs, pack, capsys):
    runs.elastic()
    first, *_ = sorted(runs.folder.rglob("*.jsonl"))
    bundle = pack([("events.jsonl", first.read_text())])
    first.unlink()
    code, out, err = run([bundle, str(runs.folder), "--json"], capsys)
    assert (code, err) == (0, "")
    assert len(json.loads(out)["nodes"]) == 3


def test_a_bundle_without_events_is_not_read_with_others(runs, pack, capsys):
    runs.elastic()
    path = pack([("report.txt", "it failed\n")])
    code, out, err = run([path, str(runs.folder)], capsys)
    assert (code, out) == (2, "")
    assert err == f"plaunch-report: error: {path!r} has no events, from which the report is made\n"


def test_the_page_of_a_bundle(pack, events, capsys, tmp_path):
    pytest.importorskip("bokeh")
    page = tmp_path / "page.html"
    code, out, _ = run([pack([("events.jsonl", events)]), "-o", str(page)], capsys)
    assert (code, out) == (0, f"{page}: run 'job' on 3 nodes, outcome 'succeeded'\n")
    assert page.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("files", [[], [("events.jsonl", "")]])
def test_without_events_the_text_is_shown(pack, files, capsys):
    path = pack([*files, ("report.txt", "rank 0 f\u00e4iled\x1b[2J\n\tand why\n")])
    assert run([path], capsys) == (0, "rank 0 f\u00e4iled\\x1b[2J\n\tand why\n", "")
    code, out, err = run([path, "--json"], capsys)
    assert (code, out) == (2, "")
    assert err == f"plaunch-report: error: {path!r} has no events, from which the report is made\n"


def test_invalid_events_are_reported_with_the_path_of_the_bundle(pack, capsys):
    path = pack([("events.jsonl", "odd\n")])
    code, _, err = run([path], capsys)
    assert code == 2
    assert err.startswith(f"plaunch-report: error: no events found in {path!r}: 1 file named")


HOSTILE = [
    ([("../events.jsonl", "x")], "its file '../events.jsonl' has an invalid path"),
    ([("/etc/events.jsonl", "x")], "has an invalid path"),
    ([("logs/../../x", "x")], "has an invalid path"),
    ([("logs\\x", "x")], "has an invalid path"),
    ([("a\nb", "x")], "has an invalid path"),
    ([(f"logs/{n}", "") for n in range(bundles.MAX_FILES + 1)], "it has 10001 files"),
    ([("notes.txt", "x")], "it has neither events nor a report"),
    ([], "it has neither events nor a report"),
]


@pytest.mark.parametrize(("files", "problem"), HOSTILE)
def test_a_forged_bundle_is_refused_in_one_line(pack, files, problem, capsys):
    path = pack(files)
    code, out, err = run([path], capsys)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith(f"plaunch-report: error: {path!r} is not a failure bundle: ")
    assert problem in line


def refusal(path, max_bytes=bundles.MAX_BYTES):
    with pytest.raises(UsageError) as raised, bundles.open_bundle(path, max_bytes):
        pass
    return str(raised.value)


def test_zip_bombs_are_not_unpacked(pack):
    path = pack([("events.jsonl", b"\0" * 3000), ("report.txt", b"\0" * 3000)])
    assert "its files have more than" in refusal(path, 5000)
    assert refusal(path, 100).endswith("it is too large")


def test_a_file_larger_than_its_declared_size_is_refused(pack, events):
    path = pack([("events.jsonl", b"\0" * 1_000_000)])
    with open(path, "rb") as file:
        data = file.read()
    for header in (b"PK\x03\x04", b"PK\x01\x02"):
        at = data.index(header) + (22 if header[2] == 3 else 24)
        data = data[:at] + struct.pack("<L", 10) + data[at + 4 :]
    with open(path, "wb") as file:
        file.write(data)
    assert "Bad CRC-32" in refusal(path)


def test_files_with_another_compression(tmp_path, pack):
    path = tmp_path / "other.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("report.txt", "x" * 100)
    assert "is encrypted, or has an unknown compression" in refusal(str(path))
    with pytest.warns(UserWarning, match="Duplicate name"):
        twice = pack([("report.txt", "a"), ("report.txt", "b")])
    assert "it has two files 'report.txt'" in refusal(twice)


def test_damaged_files_are_refused(pack, events):
    whole = io.BytesIO()
    with open(pack([("events.jsonl", events)]), "rb") as file:
        whole.write(file.read())
    data = whole.getvalue()
    path = pack()
    for end in (0, 1, 30, len(data) // 2, len(data) - 1):
        with open(path, "wb") as file:
            file.write(data[:end])
        assert " is not a failure bundle: " in refusal(path)
    for at in range(0, len(data), 97):
        with open(path, "wb") as file:
            file.write(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        with contextlib.suppress(UsageError), bundles.open_bundle(path):
            pass  # what is read of it may be the same


def test_temporary_files_of_a_bundle_are_removed(pack, events, tmp_path):
    (tmp_path / "tmp").mkdir()
    done = run_python(
        "-m",
        "plaunch_report",
        pack([("events.jsonl", events)]),
        "--json",
        env={"PATH": "", "TMPDIR": str(tmp_path / "tmp")},
    )
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "tmp").iterdir()) == []
