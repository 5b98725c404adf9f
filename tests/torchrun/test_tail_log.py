from __future__ import annotations

import io
import logging
import os
import threading
import time

import pytest
from plaunch_torchrun.tail_log import LogLines, TailLog, tail_logfile

LONG = 60.0  # seconds between polls: a test that depends on a second poll would time out


class Screen(io.StringIO):
    """A stream without a `buffer` that can wait for what is written to it."""

    def __init__(self):
        super().__init__()
        self.changed = threading.Condition()

    def write(self, text):
        with self.changed:
            count = super().write(text)
            self.changed.notify_all()
        return count

    def wait_for(self, text):
        with self.changed:
            assert self.changed.wait_for(lambda: text in self.getvalue(), timeout=20), (
                f"{text!r} never came, only {self.getvalue()!r}"
            )


FINISHED = threading.Event()
FINISHED.set()


@pytest.fixture
def file(tmp_path):
    return tmp_path / "0.log"


def tail(content, file, **options):
    """The output for a finished log file with `content`."""
    file.write_bytes(content)
    screen = Screen()
    tail_logfile("[a0]:", str(file), screen, FINISHED, LONG, **options)
    return screen.getvalue()


# --- tail_logfile ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"", ""),
        (b"one\ntwo\n", "[a0]:one\n[a0]:two\n"),
        (b"\n\n", "[a0]:\n[a0]:\n"),
        (b"no end", "[a0]:no end\n"),
        (b"windows\r\nline\r\n", "[a0]:windows\n[a0]:line\n"),
        (b"10%\r50%\rdone\n", "[a0]:10%\n[a0]:50%\n[a0]:done\n"),
        (b"ends with \r", "[a0]:ends with \n"),
        ("ünï\n".encode(), "[a0]:ünï\n"),
        (b"bad \xff byte\n", "[a0]:bad \ufffd byte\n"),
        (b"cut off \xe2\x82", "[a0]:cut off \ufffd\n"),
    ],
)
def test_a_finished_file_is_shown_to_its_last_line(content, shown, file):
    assert tail(content, file) == shown


def test_what_was_written_just_before_the_end_is_shown(file):
    file.touch()
    event = threading.Event()

    class Late(threading.Event):
        """Writes another line between the read of the file and the end."""

        def wait(self, timeout=None):
            if not event.is_set():
                file.write_text("the last words\n")
                event.set()
            return True

        def is_set(self):
            return event.is_set()

    screen = Screen()
    tail_logfile(">", str(file), screen, Late(), LONG)
    assert screen.getvalue() == ">the last words\n"


def test_a_file_that_never_exists_ends_with_the_event(tmp_path):
    screen = Screen()
    tail_logfile(">", str(tmp_path / "never"), screen, FINISHED, LONG)
    assert screen.getvalue() == ""


def test_a_filter_sees_whole_lines_and_decides(file):
    seen = []

    def keep(line):
        seen.append(line)
        return "loss" in line

    content = b"loss 1\nother\nloss 2"
    assert tail(content, file, log_line_filter=keep) == "[a0]:loss 1\n[a0]:loss 2\n"
    assert seen == ["loss 1\n", "other\n", "loss 2\n"]


def test_bytes_pass_unchanged_through_a_stream_with_a_buffer(file):
    file.write_bytes(b"bad \xff byte\n\xe2\x82")
    raw = io.BytesIO()
    screen = io.TextIOWrapper(raw, encoding="ascii")
    tail_logfile("ü:", str(file), screen, FINISHED, LONG)
    assert raw.getvalue() == b"\xc3\xbc:bad \xff byte\n\xc3\xbc:\xe2\x82\n"


@pytest.mark.parametrize(
    ("bounds", "content", "lines"),
    [
        ({"chunk_bytes": 1}, "€\r\nü\n", ["€\n", "ü\n"]),  # cut in a character and a line end
        ({"most_chars": 4}, "abcdefghij", ["abcd\n", "efgh\n", "ij\n"]),
    ],
)
def test_content_is_read_and_shown_in_pieces(file, bounds, content, lines):
    file.write_bytes(content.encode())
    with file.open("rb") as source:
        assert list(LogLines(source, **bounds).read(ended=True)) == lines


def test_output_after_the_end_does_not_prolong_the_read(file):
    file.write_text("before\n")

    class Feeding(Screen):
        def write(self, text):
            with file.open("a") as log:
                log.write("after\n")
            return super().write(text)

    screen = Feeding()
    tail_logfile(">", str(file), screen, FINISHED, LONG)
    assert screen.getvalue() == ">before\n"


def test_an_unreadable_file_raises(tmp_path):
    with pytest.raises(IsADirectoryError):
        tail_logfile(">", str(tmp_path), Screen(), FINISHED, LONG)


# --- TailLog --------------------------------------------------------------------------------------


def test_lines_appear_while_the_files_grow(tmp_path):
    files = {rank: str(tmp_path / f"{rank}.log") for rank in (0, 1)}
    screen = Screen()
    log = TailLog("trainer", files, screen, {1: "one>"}, interval_sec=0.01).start()
    for rank in (0, 1):
        with open(files[rank], "w") as file:
            file.write(f"first of {rank}\nhalf a l")
    screen.wait_for("[trainer0]:first of 0\n")
    screen.wait_for("one>first of 1\n")
    assert "half" not in screen.getvalue()
    with open(files[0], "a") as file:
        file.write("ine\n")
    screen.wait_for("[trainer0]:half a line\n")
    assert not log.stopped()
    log.stop()
    assert log.stopped()
    assert screen.getvalue().endswith("one>half a l\n")


def test_stop_shows_everything_at_once(file):
    file.touch()
    screen = Screen()
    log = TailLog("trainer", {0: str(file)}, screen, interval_sec=LONG).start()
    content = "".join(f"line {n}\n" for n in range(20_000))
    file.write_text(content)
    began = time.monotonic()
    log.stop()
    assert time.monotonic() - began < LONG / 2
    assert screen.getvalue() == content.replace("line", "[trainer0]:line")


def test_lines_of_several_files_stay_whole(tmp_path):
    files = {rank: str(tmp_path / f"{rank}.log") for rank in range(4)}
    for rank, file in files.items():
        with open(file, "w") as log:
            log.writelines(f"{rank} {n} " + "x" * 50 + "\n" for n in range(500))
    screen = Screen()
    TailLog("w", files, screen).start().stop()
    lines = screen.getvalue().splitlines()
    for rank in files:
        mine = [line for line in lines if line.startswith(f"[w{rank}]:")]
        assert mine == [f"[w{rank}]:{rank} {n} " + "x" * 50 for n in range(500)]


@pytest.mark.parametrize("dst", [None, Screen()])
def test_nothing_to_show_or_nowhere_to_show_it(file, dst):
    file.write_text("x\n")
    log = TailLog("w", {0: str(file)} if dst is None else {}, dst)
    assert log.start() is log
    log.stop()
    assert log.stopped()


def test_stop_without_start_and_a_second_stop(file):
    log = TailLog("w", {0: str(file)}, Screen())
    log.stop()
    log.stop()
    assert log.stopped()


def test_a_stream_that_fails_is_logged_and_the_others_continue(tmp_path, caplog):
    class Broken(Screen):
        def write(self, text):
            if text.startswith("[w0]"):
                raise BrokenPipeError("reader is gone")
            return super().write(text)

    files = {rank: str(tmp_path / f"{rank}.log") for rank in (0, 1)}
    for file in files.values():
        with open(file, "w") as log:
            log.write("x\n")
    screen = Broken()
    with caplog.at_level(logging.ERROR, logger="plaunch"):
        TailLog("w", files, screen).start().stop()
    assert screen.getvalue() == "[w1]:x\n"
    assert (
        f"log file {files[0]!r} is no longer shown: BrokenPipeError: reader is gone" in caplog.text
    )


def test_a_filter_that_fails_is_logged(file, caplog):
    file.write_text("x\n")
    TailLog("w", {0: str(file)}, Screen(), log_line_filter=lambda line: line.nope).start().stop()
    assert "AttributeError" in caplog.text


def test_no_descriptor_and_no_thread_is_left(file):
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    file.write_text("x\n")
    TailLog("w", {0: str(file)}, Screen()).start().stop()
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before
