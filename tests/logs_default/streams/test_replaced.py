"""Teed output when Python code has replaced `sys.stdout`."""

from __future__ import annotations

import contextlib
import io
import sys
import threading

import pytest
from plaunch.config import LaunchConfig
from plaunch.launch import launch_agent
from plaunch.process import Std, start_processes
from plaunch_logs_default import DefaultLogsSpecs

from helpers.programs import run_python
from helpers.waiting import BOUND

WORDS = ("-c", "echo out ü; echo err >&2")


def tee(tee=Std.ALL, words=WORDS, **options):
    context = start_processes("t", "sh", {0: words}, tee=tee, **options)
    result = context.wait(BOUND)
    assert not result.is_failed()


@pytest.mark.parametrize(
    ("which", "replaced", "shown", "inherited"),
    [
        (Std.ALL, Std.ALL, ("[t0]:out ü\n", "[t0]:err\n"), ("", "")),
        (Std.ALL, Std.OUT, ("[t0]:out ü\n", ""), ("", "[t0]:err\n")),
        # Output that is not teed goes to the descriptor.
        (Std.NONE, Std.ALL, ("", ""), ("out ü\n", "err\n")),
    ],
)
def test_teed_lines_go_to_the_replacement(
    capfd, monkeypatch, tmp_path, which, replaced, shown, inherited
):
    streams = {Std.OUT: io.StringIO(), Std.ERR: io.StringIO()}
    for std, name in ((Std.OUT, "stdout"), (Std.ERR, "stderr")):
        if std in replaced:
            monkeypatch.setattr(sys, name, streams[std])
    tee(which, log_dir=str(tmp_path))
    assert tuple(stream.getvalue() for stream in streams.values()) == shown
    assert capfd.readouterr() == inherited


def test_a_character_in_two_pieces(tmp_path):
    out = io.StringIO()
    script = "printf '\\303'; sleep 0.2; printf '\\274\\n\\377\\n'"
    with contextlib.redirect_stdout(out):
        tee(Std.OUT, ("-c", script), log_dir=str(tmp_path))
    assert out.getvalue() == "[t0]:ü\n[t0]:\\xff\n"


def test_the_command_line_tees_to_its_stdout(tmp_path):
    """The command line replaces `sys.stdout` itself, so that plugins do not print there."""
    words = ("-m", "plaunch", "--tee=3", "--no-python", "sh", *WORDS)
    assert run_python(*words, check=True, cwd=tmp_path).stdout == "[default0]:out ü\n"


def test_a_file_keeps_the_order_with_other_prints(tmp_path):
    path = tmp_path / "out"
    with path.open("w") as file, contextlib.redirect_stdout(file):
        print("before")
        tee(Std.OUT, log_dir=str(tmp_path / "logs"))
        print("after")
    assert path.read_text() == "before\n[t0]:out ü\nafter\n"


def test_followed_files_go_to_the_replacement(tmp_path):
    (tmp_path / "elsewhere").write_text("line\n")
    specs = DefaultLogsSpecs(log_dir=str(tmp_path), redirects=Std.ALL)
    reify = specs.reify

    def reify_with_another(envs):
        dest = reify(envs)
        dest.tee_stdouts = {0: str(tmp_path / "elsewhere")}
        return dest

    specs.reify = reify_with_another
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        start_processes("t", "sh", {0: WORDS}, logs_specs=specs).wait(BOUND)
    assert out.getvalue() == "[t0]:line\n"


def test_a_whole_launch(tmp_path):
    config = LaunchConfig(1, 1, 2, logs_specs=DefaultLogsSpecs(log_dir=str(tmp_path), tee=Std.OUT))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        launch_agent(config, "/bin/sh", ["-c", "echo $RANK"])
    assert sorted(out.getvalue().splitlines()) == ["[default_role0]:0", "[default_role1]:1"]


@pytest.mark.parametrize("what", [ValueError("closed"), OSError(5, "gone"), RuntimeError("?")])
def test_a_broken_replacement_does_not_affect_the_job(what, tmp_path, caplog):
    class Broken(io.StringIO):
        def write(self, text):
            raise what

    with contextlib.redirect_stdout(Broken()):
        tee(log_dir=str(tmp_path))
    assert "sys.stdout cannot be written to any more" in caplog.text


def test_no_thread_remains(tmp_path):
    before = threading.active_count()
    with contextlib.redirect_stdout(io.StringIO()):
        tee(log_dir=str(tmp_path))
    assert threading.active_count() == before
