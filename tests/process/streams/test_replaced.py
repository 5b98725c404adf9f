"""Teed output where a program has put something else in the place of `sys.stdout`."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import threading

import pytest
from plaunch.config import LaunchConfig
from plaunch.launch import launch_agent
from plaunch.process import Std, start_processes
from plaunch_logs_default import DefaultLogsSpecs

BOUND = 60.0
WORDS = ("-c", "echo out ü; echo err >&2")


def tee(tee=Std.ALL, **options):
    context = start_processes("t", "sh", {0: WORDS}, tee=tee, **options)
    result = context.wait(BOUND)
    assert not result.is_failed()


def test_it_goes_where_sys_stdout_goes(capfd, tmp_path):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        tee(log_dir=str(tmp_path))
    assert (out.getvalue(), err.getvalue()) == ("[t0]:out ü\n", "[t0]:err\n")
    assert capfd.readouterr() == ("", "")


def test_what_is_not_teed_goes_where_the_descriptor_goes(capfd):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        tee(Std.NONE)
    assert (out.getvalue(), err.getvalue()) == ("", "")
    assert capfd.readouterr() == ("out ü\n", "err\n")


def test_one_of_the_two_is_replaced(capfd, tmp_path):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        tee(log_dir=str(tmp_path))
    assert out.getvalue() == "[t0]:out ü\n"
    assert capfd.readouterr() == ("", "[t0]:err\n")


def test_a_file_gets_what_others_print_in_the_right_order(tmp_path):
    path = tmp_path / "out"
    with path.open("w") as file, contextlib.redirect_stdout(file):
        print("before")
        tee(Std.OUT, log_dir=str(tmp_path / "logs"))
        print("after")
    assert path.read_text() == "before\n[t0]:out ü\nafter\n"


def test_files_that_are_followed_go_there_too(tmp_path):
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
def test_an_object_that_takes_nothing_harms_nobody(what, tmp_path, caplog):
    class Broken(io.StringIO):
        def write(self, text):
            raise what

    with contextlib.redirect_stdout(Broken()):
        tee(log_dir=str(tmp_path))
    assert "sys.stdout cannot be written to any more" in caplog.text


def test_characters_that_come_in_two_pieces(tmp_path):
    writes = []

    class Slow(io.StringIO):
        def write(self, text):
            writes.append(text)
            return len(text)

    out = Slow()
    script = "printf '\\303'; sleep 0.2; printf '\\274\\n\\377\\n'"
    with contextlib.redirect_stdout(out):
        start_processes("t", "sh", {0: ("-c", script)}, tee=Std.OUT, log_dir=str(tmp_path)).wait(
            BOUND
        )
    assert "".join(writes) == "[t0]:ü\n[t0]:\\xff\n"


def test_the_command_line_tees_to_its_stdout(tmp_path):
    """It has its own `sys.stdout` replaced, lest plugins print there."""
    done = subprocess.run(
        [sys.executable, "-m", "plaunch", "--tee=3", "--no-python", "sh", *WORDS],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        timeout=BOUND,
    )
    assert done.stdout == "[default0]:out ü\n"


def test_no_thread_is_left(tmp_path):
    before = threading.active_count()
    with contextlib.redirect_stdout(io.StringIO()):
        tee(log_dir=str(tmp_path))
    assert threading.active_count() == before
