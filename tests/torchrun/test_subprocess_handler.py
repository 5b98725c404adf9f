"""Starting one program."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import pytest
from plaunch.errors import (
    PlaunchError,
    ProgramNotExecutableError,
    ProgramNotFoundError,
    UsageError,
    WorkerStartError,
)
from plaunch_torchrun.elastic.multiprocessing import SubprocessHandler, get_subprocess_handler


def start(program, *args, env=None, out=None, err=None, rank=0):
    return SubprocessHandler(program, args, env or {}, out, err, rank)


def output_of(code, *args, env=None):
    """Run Python code as a worker and return what it wrote to stdout."""
    reader, writer = os.pipe()
    handler = start(sys.executable, "-c", code, *args, env=env, out=writer)
    os.close(writer)
    with open(reader) as stream:
        text = stream.read()
    assert handler.proc.wait(20) == 0
    return text


def test_arguments_are_passed_as_strings():
    code = "import sys; print(sys.argv[1:])"
    text = output_of(code, 1, 2.5, [1, 2], "a b", b"raw", "")
    assert text == "['1', '2.5', '[1, 2]', 'a b', 'raw', '']\n"


def test_the_environment_is_the_launchers_with_additions(monkeypatch):
    monkeypatch.setenv("FROM_LAUNCHER", "kept")
    monkeypatch.setenv("CHANGED", "old")
    code = "import os; print(*(os.environ[n] for n in ('FROM_LAUNCHER', 'CHANGED', 'NUMBER')))"
    assert output_of(code, env={"CHANGED": "new", "NUMBER": 3}) == "kept new 3\n"
    assert "NUMBER" not in os.environ


def test_it_leads_a_session_of_its_own():
    code = "import os; print(os.getpid() == os.getsid(0) == os.getpgrp())"
    assert output_of(code) == "True\n"


@pytest.mark.parametrize("count", [6, 7])
def test_it_can_be_constructed_by_position(count, tmp_path):
    """A public fork of torchrun's agent does so, with and without the seventh."""
    values = ["echo", ("hello",), {}, str(tmp_path / "out"), str(tmp_path / "err"), 3, None]
    handler = SubprocessHandler(*values[:count])
    assert handler.proc.wait(20) == 0
    assert handler.local_rank_id == 3
    assert (tmp_path / "out").read_text() == "hello\n"
    assert (tmp_path / "err").read_text() == ""


def test_paths_are_overwritten(tmp_path):
    path = tmp_path / "out"
    path.write_text("from an earlier run")
    handler = get_subprocess_handler("echo", ("new",), {}, str(path), "", 0)
    handler.proc.wait(20)
    assert path.read_text() == "new\n"


def test_no_descriptor_stays_open(tmp_path):
    before = set(os.listdir("/proc/self/fd"))
    start("true", out=str(tmp_path / "out"), err=str(tmp_path / "err")).proc.wait(20)
    with pytest.raises(ProgramNotFoundError):
        start("/no/such/program", out=str(tmp_path / "out"))
    assert set(os.listdir("/proc/self/fd")) == before


def test_close_signals_the_whole_group():
    reader, writer = os.pipe()
    handler = start("sh", "-c", "sleep 600 & echo started; wait", out=writer)
    os.close(writer)
    with open(reader) as stream:
        stream.readline()
        handler.close()
        assert handler.proc.wait(20) == -signal.SIGTERM
        assert stream.read() == "", "the child still holds the pipe"


def test_close_sends_the_requested_signal():
    handler = start("sleep", "600")
    handler.close(signal.SIGUSR1)
    assert handler.proc.wait(20) == -signal.SIGUSR1


def test_close_after_the_end_sends_no_signal(monkeypatch):
    handler = start("true")
    handler.proc.wait(20)
    signals = []
    for name in ("kill", "killpg"):
        monkeypatch.setattr(os, name, lambda *given: signals.append(given))
    handler.close()
    assert signals == []


@pytest.mark.parametrize(
    ("program", "cause"),
    [
        ("/no/such/program", "there is no such file"),
        ("no-such-program-anywhere", "no directory in PATH has it; PATH is "),
    ],
)
def test_a_program_that_does_not_exist(program, cause):
    with pytest.raises(ProgramNotFoundError) as caught:
        start(program, rank=3)
    assert str(caught.value).startswith(f"cannot start {program!r} for local rank 3: {cause}")
    for kind in (PlaunchError, FileNotFoundError, WorkerStartError):
        assert isinstance(caught.value, kind)
    assert caught.value.errno == errno.ENOENT
    assert isinstance(caught.value.__cause__, FileNotFoundError)


@pytest.fixture
def write(tmp_path):
    """Write a program."""

    def write(content, mode=0o755):
        program = tmp_path / "my-trainer"
        program.write_text(content)
        program.chmod(mode)
        return str(program)

    return write


def test_the_path_is_the_workers(tmp_path, write):
    write("#!/bin/sh\nexit 5\n")
    assert start("my-trainer", env={"PATH": f"{tmp_path}:/bin"}).proc.wait(20) == 5


def test_a_script_whose_interpreter_does_not_exist(write):
    with pytest.raises(ProgramNotFoundError, match="the interpreter after its '#!' does not exist"):
        start(write("#!/no/such/python\n"))


@pytest.mark.parametrize(
    ("mode", "content", "cause"),
    [
        (0o644, "#!/bin/sh\n", r"it may not be executed by this user; see chmod \+x"),
        (0o755, "print('no first line')\n", "it is neither a binary .* nor a script"),
    ],
)
def test_a_program_that_is_not_executable(write, mode, content, cause):
    with pytest.raises(ProgramNotExecutableError, match=cause) as caught:
        start(write(content, mode))
    assert isinstance(caught.value, PermissionError)
    assert caught.value.errno in (errno.EACCES, errno.ENOEXEC)


def test_a_directory_is_not_a_program(tmp_path):
    with pytest.raises(ProgramNotExecutableError, match="it is a directory"):
        start(str(tmp_path))


def test_a_nul_character_is_a_usage_error():
    with pytest.raises(UsageError, match="cannot be started: embedded null byte"):
        start("echo", "a\0b")


def test_another_refusal_of_the_system_is_passed_on(monkeypatch):
    def refuse(*args, **kwargs):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(WorkerStartError, match=r"the system gives no more processes or threads"):
        start("echo")


def test_an_unknown_kind_of_cpu_binding_is_refused():
    with pytest.raises(UsageError, match="give NumaOptions"):
        SubprocessHandler("echo", (), {}, None, None, 0, object())
