"""The program: its outputs, and its errors."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys

import pytest
from plaunch.errors import UsageError
from plaunch_report import cli

from helpers.programs import run_python


def run(argv, capsys):
    code = cli.main(argv)
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.fixture
def folder(runs):
    """Of a run in which all kinds of things happen."""
    runs.elastic()
    return str(runs.folder)


def test_json_is_for_machines(folder, capsys):
    code, out, err = run([folder, "--json"], capsys)
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert facts["version"] == 2
    assert (facts["run_id"], facts["outcome"], facts["exit_code"]) == ("job", "succeeded", 0)
    assert [item["world_size"] for item in facts["rounds"]] == [4, 4, 6]
    assert facts["failures"][0]["last_lines"] == "Traceback:\nValueError: bad batch"
    assert facts["nodes"][0]["seconds"]["lost"] == 7


def test_json_needs_no_libraries(folder):
    code = (
        "import sys; from plaunch_report.cli import main; "
        f"main([{folder!r}, '--json', '-o', {os.devnull!r}]); "
        "print(sorted({'bokeh', 'jinja2', 'numpy', 'torch'} & set(sys.modules)))"
    )
    done = run_python("-c", code)
    assert "[]\n" in done.stdout, done.stderr


def test_a_missing_library_is_named_with_the_extra(folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "bokeh", None)
    code, _, err = run([folder], capsys)
    assert code == 2
    assert "the page needs the library 'bokeh'" in err
    assert "pip install 'plaunch[report]', or use --json" in err


def test_the_page_is_written_to_report_html_by_default(folder, capsys, monkeypatch, tmp_path):
    pytest.importorskip("bokeh")
    monkeypatch.chdir(tmp_path)
    code, out, _ = run([folder], capsys)
    assert (code, out) == (0, "report.html: run 'job' on 3 nodes, outcome 'succeeded'\n")
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs", "report.html"]
    code, out, _ = run([folder, "-o", "-"], capsys)
    assert code == 0
    assert out.startswith("<!DOCTYPE html>")


def test_an_output_that_cannot_be_written(folder, capsys, tmp_path):
    path = tmp_path / "absent" / "facts.json"
    code, _, err = run([folder, "--json", "-o", str(path)], capsys)
    assert code == 2
    assert f"cannot write the report to {str(path)!r}: No such file" in err
    code, _, err = run([folder, "--json", "-o", str(tmp_path)], capsys)
    assert code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["logs"], "what was begun is removed"


FULL = "No space left on device"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
@pytest.mark.parametrize(
    ("form", "output"),
    [(["--json"], []), (["--json"], ["-o", "/dev/full"]), ([], [])],
)
def test_a_full_disk_is_one_line(folder, tmp_path, form, output):
    if not form:
        pytest.importorskip("bokeh")
    (tmp_path / "report.html").write_text("the report of before")
    with open("/dev/full", "w") as full:
        words = ["-m", "plaunch_report", folder, *form, *output]
        pipes = {"capture_output": False, "stdout": full, "stderr": subprocess.PIPE}
        done = run_python(*words, cwd=tmp_path, **pipes)
    assert done.returncode == 2
    assert re.fullmatch(rf"plaunch-report: error: cannot write .*: {FULL}.*\n", done.stderr)
    if "/dev/full" in output:
        assert (tmp_path / "report.html").read_text() == "the report of before"


def test_an_existing_report_is_kept_if_the_disk_is_full(folder, tmp_path):
    path = tmp_path / "report.html"
    path.write_text("the report of before")
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); "
        "from plaunch_report.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    done = run_python("-B", "-c", code, folder, "--json", "-o", path, cwd=tmp_path)
    assert done.returncode == 2
    assert re.fullmatch(
        rf"plaunch-report: error: cannot write the report to '{path}': .*\n", done.stderr
    )
    assert path.read_text() == "the report of before"
    assert sorted(found.name for found in tmp_path.iterdir()) == ["logs", "report.html"]


def others_in(folder):
    return sorted(path.name for path in folder.iterdir() if path.name not in ("logs", "facts.json"))


def test_files_of_other_users_are_not_written_to(folder, capsys, tmp_path, monkeypatch):
    """The name of what is not complete yet cannot be known before, and no link is followed."""
    path, victim = tmp_path / "facts.json", tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / f"facts.json.{os.getpid()}.partial").symlink_to(victim)
    monkeypatch.setattr(cli.secrets, "token_hex", lambda size: "known")
    (tmp_path / "facts.json.known.partial").symlink_to(victim)
    code, _, err = run([folder, "--json", "-o", str(path)], capsys)
    assert code == 2
    assert "File exists" in err
    (tmp_path / "facts.json.known.partial").unlink()
    code, _, _ = run([folder, "--json", "-o", str(path)], capsys)
    assert code == 0
    assert json.loads(path.read_text())["run_id"] == "job"
    assert victim.read_text() == "precious"


def test_a_link_stays_a_link(folder, capsys, tmp_path):
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "latest").write_text("the report of before")
    link = tmp_path / "facts.json"
    link.symlink_to(pages / "latest")
    code, _, _ = run([folder, "--json", "-o", str(link)], capsys)
    assert code == 0
    assert link.is_symlink()
    assert json.loads((pages / "latest").read_text())["run_id"] == "job"
    assert [path.name for path in pages.iterdir()] == ["latest"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, UsageError("no"), RuntimeError])
def test_an_incomplete_report_is_removed(folder, tmp_path, monkeypatch, error):
    path = tmp_path / "facts.json"
    path.write_text("the report of before")

    def pieces(summary):
        yield "{"
        assert len(others_in(tmp_path)) == 1
        raise error

    monkeypatch.setattr(cli, "_as_json", pieces)
    with contextlib.suppress(KeyboardInterrupt, RuntimeError):
        cli.main([folder, "--json", "-o", str(path)])
    assert path.read_text() == "the report of before"
    assert others_in(tmp_path) == []


def test_a_closed_pipe_causes_no_traceback(runs):
    runs.large(nodes=4)
    done = subprocess.run(
        [
            "sh",
            "-c",
            '"$0" -m plaunch_report --json "$1" | head -c 10',
            sys.executable,
            runs.folder,
        ],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("{")
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["absent"], "'absent' does not exist; give the folder that --log-dir named"),
        (["file"], "'file' is not a folder"),
        (["empty"], "no events found in 'empty': it has no *.jsonl files"),
        (["garbage"], "no events found in 'garbage': 1 file named *.jsonl, but no line"),
        (["logs", "--run-id=x"], "there is no run 'x'; choose with --run-id: 'job'"),
        (["logs", "--launch=0"], "--launch=0: this run was launched once; the first is 1"),
    ],
)
def test_errors_are_one_line_and_say_what_to_do(argv, words, folder, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "garbage").mkdir()
    (tmp_path / "garbage" / "a.jsonl").write_text("garbage\n")
    code, out, err = run(argv, capsys)
    assert (code, out) == (2, "")
    assert err.startswith("plaunch-report: error: ")
    assert err.count("\n") == 1
    assert words in err


def test_the_program_is_installed():
    """As `plaunch-report`, and as a module."""
    from importlib.metadata import entry_points

    [script] = entry_points(group="console_scripts", name="plaunch-report")
    assert script.load() is cli.entry_point
    done = run_python("-m", "plaunch_report", "--help", check=True)
    assert "PATH" in done.stdout
