"""stderr of the launcher; real launches are in e2e/test_evil_plugins.py."""

from __future__ import annotations

import datetime
import io
import json
import os
import pathlib
import signal
import termios
import threading

import pytest
from plaunch.cli.console import Stderr

from helpers.faults import raising
from helpers.pipes import fill
from helpers.processes import forks_beside_threads
from helpers.terminals import lines_on_screen, set_columns
from helpers.waiting import wait_until

BOUND = 60.0  # seconds
ERASE = "\r\x1b[K"
NEW_LINE = " " * 40 + ERASE  # on a terminal of 40 columns
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


@forks_beside_threads
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


def test_the_thread_that_keeps_the_time_receives_no_signals(stderr):
    with stderr.holding("held", 60.0) as keep_time:
        keep_time()
        (thread,) = (each for each in threading.enumerate() if each.name == "plaunch-hold")
        status = pathlib.Path(f"/proc/self/task/{thread.native_id}/status").read_text()
        blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
        assert blocked & 1 << signal.SIGTERM - 1


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
    set_columns(writer, 40)
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
        (["one", "two"], "", f"{NEW_LINE}plaunch: one{ERASE}plaunch: two"),
        (
            ["one"],
            "plaunch: more\n",
            f"{NEW_LINE}plaunch: one{ERASE}plaunch: more\n{NEW_LINE}plaunch: more\n",
        ),
        (["one", "", ""], "", f"{NEW_LINE}plaunch: one{ERASE}"),
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


@pytest.mark.parametrize(
    ("text", "tail", "columns", "seen"),
    [
        ("x" * 100, "", 40, "plaunch: " + "x" * 29 + "…"),
        ("x" * 100, " (12 s; Ctrl-C)", 40, "plaunch: " + "x" * 14 + "… (12 s; Ctrl-C)"),
        ("x" * 15, " (12 s; Ctrl-C)", 40, "plaunch: " + "x" * 15 + " (12 s; Ctrl-C)"),
        ("x" * 16, " (12 s; Ctrl-C)", 40, "plaunch: " + "x" * 14 + "… (12 s; Ctrl-C)"),
        ("\uc77c" * 20, " (1 s)", 40, "plaunch: " + "\uc77c" * 11 + "… (1 s)"),
        ("x", " (12 s; Ctrl-C)", 12, "… (12 s; Ct"),
        ("x", " (1 s)", 1, "…"),
    ],
)
def test_it_never_wraps(terminal, text, tail, columns, seen):
    stream, read = terminal
    set_columns(stream, columns)
    stderr = Stderr(lambda: stream)
    stderr.show(text, tail)
    stderr.finish()
    assert read().removeprefix(" " * columns + ERASE) == seen


@pytest.mark.parametrize("begun", ["", "(", "(Pdb) ", "x" * 39, "x" * 40, "x" * 41])
@pytest.mark.parametrize("write", [Stderr.say, Stderr.show])
def test_it_begins_a_new_line_behind_the_prompt_of_a_worker(terminal, begun, write):
    stream, read = terminal
    stream.write(begun)
    stream.flush()
    stderr = Stderr(lambda: stream)
    write(stderr, "run id 7")
    stderr.finish()
    lines = lines_on_screen(read(), 40)
    assert "".join(lines[: lines.index("plaunch: run id 7")]) == begun.rstrip(" ")
    assert "" not in lines[:-1]


@pytest.mark.parametrize("how", ["json", "dumb", "of unknown width"])
def test_without_a_suitable_terminal_a_message_is_written_as_it_is(terminal, monkeypatch, how):
    stream, read = terminal
    stderr = Stderr(lambda: stream)
    if how == "json":
        stderr.set_format("json", "auto")
    elif how == "dumb":
        monkeypatch.setenv("TERM", "dumb")
    else:
        set_columns(stream, 0)
    stderr.write("as it is\n")
    stderr.finish()
    assert read() == "as it is\n"


@pytest.mark.usefixtures("no_color_variables")
def test_a_terminal_breaks_no_word(terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    text = "rank 1 failed: " + "in a long sentence " * 3 + "\n  1 rank: 2"
    assert Stderr(lambda: terminal[0]).format(text, "ERROR") == (
        "plaunch: rank 1 failed: in a long\n  sentence in a long sentence in a long\n"
        "  sentence\n  1 rank: 2"
    )


def test_messages_about_the_whole_launch_come_last(pipe, stderr):
    with stderr.keeping_last():
        stderr.say_last("this launch took 3 s")
        stderr.say("rank 1 failed")
    stderr.say_last("another")
    stderr.finish()
    expected = b"plaunch: rank 1 failed\nplaunch: this launch took 3 s\nplaunch: another\n"
    assert pipe.read(len(expected)) == expected


def test_a_caller_may_write_the_last_messages_itself(stderr):
    said = []
    with stderr.keeping_last(lambda *message: said.append(message)):
        stderr.say_last("this launch took 3 s")
        stderr.say_last("too long", "WARNING")
    assert said == [("this launch took 3 s", "INFO"), ("too long", "WARNING")]


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
