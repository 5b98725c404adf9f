"""stdout and stderr of the launcher; real launches are in e2e/test_evil_plugins.py."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import io
import json
import os
import struct
import subprocess
import sys
import termios
import threading
from types import SimpleNamespace

import pytest
from plaunch.cli import program
from plaunch.cli.console import Stderr, Stdout
from plaunch.plugin import hookimpl

from helpers.faults import raising
from helpers.pipes import fill
from helpers.programs import run_python
from helpers.waiting import wait_until

BOUND = 60.0  # seconds
ERASE = "\r\x1b[K"
NO_THREADS = raising(RuntimeError("can't start new thread"))


class Pipe:
    """A stream into a pipe that takes little before somebody reads."""

    def __init__(self):
        self.reader, self.writer = os.pipe()
        self.stream = open(self.writer, "w", encoding="utf-8", closefd=False)

    def read(self, size):
        data = b""
        while len(data) < size:
            data += os.read(self.reader, size - len(data))
        return data

    def close(self):
        self.stream.close()
        os.close(self.writer)
        os.close(self.reader)


@pytest.fixture
def pipe():
    pipe = Pipe()
    yield pipe
    pipe.close()


@pytest.fixture
def stderr(pipe):
    return Stderr(lambda: pipe.stream)


def test_a_message_is_written_when_write_returns_and_no_thread_stays(pipe, stderr):
    threads = threading.active_count()
    stderr.write("one\n")
    stderr.write("two, with a lone surrogate: \udcff\n")
    assert os.read(pipe.reader, 4096) == b"one\ntwo, with a lone surrogate: \\udcff\n"
    assert stderr.finish(BOUND)
    # It has nothing more to do, and is about to end.
    wait_until(lambda: threading.active_count() <= threads, "its thread has ended")


def test_a_stalled_reader_is_not_waited_for(pipe, stderr):
    size = fill(pipe.writer)
    for number in range(1000):
        stderr.write(f"{number}\n")
    assert not stderr.finish(0.01)
    # As soon as somebody reads, all of it arrives, in order.
    pipe.read(size)
    expected = "".join(f"{number}\n" for number in range(1000)).encode()
    assert pipe.read(len(expected)) == expected
    assert stderr.finish(BOUND)


def test_a_slow_reader_gets_everything(pipe, stderr):
    text = "".join(f"{number:07d}\n" for number in range(50_000))
    received = []
    reader = threading.Thread(target=lambda: received.append(pipe.read(len(text))))
    stderr.write(text)  # more than the pipe takes, and nobody has read yet
    reader.start()
    assert stderr.finish(BOUND)
    reader.join(BOUND)
    assert received == [text.encode()]


def test_a_reader_with_a_non_blocking_pipe_gets_everything(pipe, stderr):
    size = fill(pipe.writer)
    os.set_blocking(pipe.writer, False)
    stderr.write("late\n")
    pipe.read(size)
    assert pipe.read(5) == b"late\n"


def test_a_reader_that_has_ended_is_ignored():
    other_reader, writer = os.pipe()
    os.close(other_reader)
    with open(writer, "w") as stream:
        stderr = Stderr(lambda: stream)
        stderr.write("to nobody\n")
        assert stderr.finish(BOUND)


def test_a_stderr_that_is_no_file_is_written_to_as_it_is():
    stream = io.StringIO()
    Stderr(lambda: stream).write("to a notebook\n")
    assert stream.getvalue() == "to a notebook\n"


CLOSED = io.StringIO()
CLOSED.close()


@pytest.mark.parametrize("stream", [None, CLOSED])
def test_without_a_stderr_messages_are_lost(stream):
    Stderr(lambda: stream).write("to nobody\n")


def test_a_forked_child_can_write_while_its_parent_is_stuck(pipe, stderr):
    size = fill(pipe.writer)
    stderr.write("parent\n")
    pid = os.fork()
    if pid == 0:
        # The parent's thread does not exist here; the message that it has in hand is the parent's.
        code = 1
        try:
            stderr.write("child\n")
            code = 0 if stderr.finish(BOUND) else 2
        finally:
            os._exit(code)
    pipe.read(size)
    received = sorted(pipe.read(len("parent\nchild\n")).decode().splitlines())
    assert received == ["child", "parent"]
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_messages_are_written_without_threads(pipe):
    stderr = Stderr(lambda: pipe.stream, start=NO_THREADS)
    stderr.write("said\n")
    assert os.read(pipe.reader, 100) == b"said\n"
    assert stderr.finish(0)


def test_a_held_message_is_dropped_after_a_quick_success(pipe, stderr):
    threads = threading.active_count()
    with stderr.holding("held\n", BOUND) as keep_time:
        assert threading.active_count() == threads
        keep_time()
    assert threading.active_count() == threads
    stderr.write("after\n")
    assert pipe.read(6) == b"after\n"


def test_a_held_message_is_written_before_the_first_other_one(pipe, stderr):
    with stderr.holding("held\n", BOUND):
        stderr.write("one\n")
        stderr.write("two\n")
    stderr.write("three\n")
    assert pipe.read(19) == b"held\none\ntwo\nthree\n"


def test_what_is_held_is_written_when_the_time_is_over(pipe, stderr):
    with stderr.holding("held\n", 0) as keep_time:
        keep_time()
        assert pipe.read(5) == b"held\n"


def test_a_held_message_is_written_at_a_late_end(pipe, stderr):
    with stderr.holding("held\n", 0):
        pass
    assert pipe.read(5) == b"held\n"


def test_a_held_message_is_written_after_a_failure(pipe, stderr):
    with pytest.raises(ValueError, match="so"), stderr.holding("held\n", BOUND):
        raise ValueError("so")
    stderr.write("after\n")
    assert pipe.read(11) == b"held\nafter\n"


def test_without_threads_nothing_is_held(pipe):
    stderr = Stderr(lambda: pipe.stream, start=NO_THREADS)
    with stderr.holding("held\n", BOUND) as keep_time:
        keep_time()
        assert os.read(pipe.reader, 100) == b"held\n"


# --- a status line ---


@pytest.fixture
def terminal(monkeypatch):
    """A terminal of 40 columns: a stream to it, and a function that returns its input."""
    reader, writer = os.openpty()
    attributes = termios.tcgetattr(writer)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(writer, termios.TCSANOW, attributes)
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 25, 40, 0, 0))
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(writer, "w") as stream:

        def read():
            stream.write("END")
            stream.flush()
            seen = ""
            while not seen.endswith("END"):
                seen += os.read(reader, 4096).decode()
            return seen.removesuffix("END")

        yield stream, read
    os.close(reader)


@pytest.mark.parametrize(
    ("shown", "written", "seen"),
    [
        (["one", "two"], "", f"{ERASE}plaunch: one{ERASE}{ERASE}plaunch: two"),
        (["one"], "plaunch: more\n", f"{ERASE}plaunch: one{ERASE}plaunch: more\nplaunch: more\n"),
        (["one", "", ""], "", f"{ERASE}plaunch: one{ERASE}"),
    ],
    ids=["the next line", "a message, once", "an empty line, once"],
)
def test_a_line_is_taken_away(terminal, shown, written, seen):
    stream, read = terminal
    stderr = Stderr(lambda: stream)
    for text in shown:
        stderr.show(text)
    if written:
        stderr.write(written)
        stderr.write(written)
    stderr.finish()
    assert read() == seen


def test_it_never_wraps(terminal):
    stream, read = terminal
    stderr = Stderr(lambda: stream)
    stderr.show("x" * 100)
    stderr.finish()
    shown = read().removeprefix(ERASE)
    assert len(shown) == 39
    assert shown.endswith("x…")


def test_a_terminal_that_cannot_replace_lines_gets_none(terminal, monkeypatch):
    stderr = Stderr(lambda: terminal[0])
    assert stderr.can_show()
    monkeypatch.setenv("TERM", "dumb")
    assert not stderr.can_show()
    monkeypatch.delenv("TERM")
    assert not stderr.can_show()


def test_neither_does_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    with (tmp_path / "err").open("w") as stream:
        assert not Stderr(lambda: stream).can_show()
    assert not Stderr(lambda: None).can_show()


# --- format ---


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def no_color_variables(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)


def test_text_has_a_prefix():
    assert Stderr(lambda: None).format("one\ntwo", "INFO") == "plaunch: one\ntwo"


def test_an_object_a_line():
    stderr = Stderr()
    stderr.set_format("json", "always")
    stderr.set_run_id("job17")
    line = stderr.format("one\ntwo", "WARNING", 1700000000.25)
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250000+00:00",
        "version": 1,
        "level": "WARNING",
        "run_id": "job17",
        "host": os.uname().nodename,
        "message": "one\ntwo",
    }


def test_a_message_has_the_current_time_and_no_run_id_before_it_is_set():
    stderr = Stderr()
    stderr.set_run_id("of the launch before")
    stderr.set_format("json", "auto")
    before = datetime.datetime.now(datetime.timezone.utc)
    told = json.loads(stderr.format("x", "ERROR"))
    assert before <= datetime.datetime.fromisoformat(told["time"])
    assert told["run_id"] is None


@pytest.mark.parametrize(
    ("argv", "environ", "is_json"),
    [
        (["--log-format=json", "--nope"], {}, True),
        (["--log-format", "json", "--nope"], {}, True),
        (["--nope"], {"PET_LOG_FORMAT": "json"}, True),
        (["--nope", "json"], {"PET_LOG_FORMAT": "text"}, False),
        ([], {}, False),
    ],
)
def test_usage_errors_have_the_requested_log_format(argv, environ, is_json):
    stderr = Stderr()
    stderr.guess_format(argv, environ)
    assert stderr.is_json == is_json


@pytest.mark.parametrize(
    ("color", "stream", "environ", "is_colored"),
    [
        ("auto", Screen(), {}, True),
        ("auto", io.StringIO(), {}, False),
        ("auto", None, {}, False),
        ("auto", Screen(), {"TERM": "dumb"}, False),
        ("auto", Screen(), {"NO_COLOR": "1"}, False),
        ("auto", Screen(), {"NO_COLOR": ""}, True),
        ("auto", io.StringIO(), {"FORCE_COLOR": "1"}, True),
        ("auto", io.StringIO(), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ("never", Screen(), {"FORCE_COLOR": "1"}, False),
        ("always", io.StringIO(), {"NO_COLOR": "1"}, True),
    ],
)
def test_when_there_are_colours(monkeypatch, color, stream, environ, is_colored):
    stderr = Stderr(lambda: stream)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    stderr.set_format("text", color)
    assert ("\x1b" in stderr.format("rank 3", "ERROR")) == is_colored


def test_a_stderr_that_is_closed_has_no_colours():
    assert Stderr(lambda: CLOSED).format("rank 3", "ERROR") == "plaunch: rank 3"


# --- stdout ---


class Talking:
    def __init__(self):
        print("talk")

    @hookimpl
    def plaunch_worker_env(self):
        print("talk")


@pytest.mark.parametrize("argv", [["--dry-run=json"], ["--list-plugins"]], ids=repr)
def test_only_the_answer_of_a_command_is_on_stdout(argv, capsys) -> None:
    stdout = sys.stdout
    assert program.main([*argv, "--no-python", "true"], plugins=[Talking]) == 0
    out, err = capsys.readouterr()
    assert out
    assert "talk" not in out
    assert "talk\n" in err
    assert sys.stdout is stdout


@pytest.mark.parametrize(
    ("is_launch", "out", "err"),
    [(True, "theirs\nours\nmine\n", ""), (False, "ours\nmine\n", "theirs\n")],
)
def test_a_program_that_launches_keeps_its_stdout_and_another_does_not(
    capsys, is_launch, out, err
) -> None:
    stdout = Stdout()
    with stdout.reserved(is_launch=is_launch):
        print("theirs")
        stdout.write("ours\n")
    print("mine")
    assert capsys.readouterr() == (out, err)


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_two_calls_at_once_both_write_to_it(capsys, first_to_end) -> None:
    stdout, before = Stdout(), sys.stdout
    calls = [stdout.reserved(is_launch=False) for _ in range(2)]
    for number, call in enumerate(calls):
        call.__enter__()
        stdout.write(f"ours {number}\n")
        print(f"theirs {number}")
    calls.pop(first_to_end).__exit__(None, None, None)
    stdout.write("ours still\n")
    print("theirs still")
    calls.pop().__exit__(None, None, None)
    assert sys.stdout is before
    print("mine")
    out, err = capsys.readouterr()
    assert out == "ours 0\nours 1\nours still\nmine\n"
    assert err == "theirs 0\ntheirs 1\ntheirs still\n"


def test_stdout_that_is_closed() -> None:
    with contextlib.redirect_stdout(None), Stdout().reserved(is_launch=False):
        assert sys.stdout is None


def test_a_closed_pipe_is_ignored() -> None:
    attempts = []

    def write(text):
        attempts.append(text)
        raise BrokenPipeError

    with contextlib.redirect_stdout(SimpleNamespace(write=write)):
        Stdout().write("text")
    assert attempts == ["text"]


def test_a_stdout_on_a_full_disk_is_no_fault_of_plaunch() -> None:
    with open("/dev/full", "w") as full:
        pipes = {"capture_output": False, "stdout": full, "stderr": subprocess.PIPE}
        done = run_python("-m", "plaunch", "--print-completion=bash", **pipes)
    assert done.returncode == 1
    assert done.stderr == (
        "plaunch: stdout, where this output was to go, cannot be written: No space left on "
        "device; the output is incomplete\n"
    )
