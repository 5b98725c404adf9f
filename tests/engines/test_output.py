"""`MergedOutput` writes the lines of all nodes."""

import contextlib
import itertools
import os

import pytest
from plaunch_engines.output import STDERR, STDOUT, MergedOutput, OutputLoss

from helpers.waiting import wait_until


def assert_written(output):
    output.request_end()
    wait_until(output.is_written, output.losses)
    assert output.losses() == []


def test_lines_of_workers_go_to_the_given_descriptor():
    """Descriptor 1 of a command is a copy of stderr."""
    reader, writer = os.pipe()
    output = MergedOutput(lambda text, level: text, stdout=writer)
    output.write(STDOUT, "node1", b"trained\n")
    output.write(STDOUT, "node2", b"50 %")
    output.write(STDOUT, "node1", b"saved\n")
    assert_written(output)
    assert os.read(reader, 100) == b"[node1] trained\n[node2] 50 %\n[node1] saved\n"
    for fd in (reader, writer):
        os.close(fd)


def test_messages_go_to_stderr(capfd):
    output = MergedOutput(lambda text, level: f"{level} {text}")
    output.say("node1 is lost", "WARNING")
    output.write(STDERR, "node1", b"careful\n")
    assert_written(output)
    assert capfd.readouterr().err == "WARNING node1 is lost\n[node1] careful\n"


def test_neither_a_message_nor_the_status_line_touches_a_line_without_an_end(capfd):
    output = MergedOutput(
        lambda text, level: text, has_status=True, clock=itertools.count().__next__
    )
    output.show("running")
    output.write(STDERR, "node1", b"50 %")
    output.show("running still")
    output.say("node2 is lost")
    output.write(STDERR, "node1", b" done\n")
    assert_written(output)
    erase = "\r\x1b[K"
    parts = ["running", f"{erase}[node1] 50 %", "\nnode2 is lost\n", "running still"]
    parts += [f"{erase}[node1] 50 % done\n", "running still", erase]
    assert capfd.readouterr().err == "".join(parts)


def test_a_line_without_an_end_is_repeated_once_it_goes_on_if_others_have_written(capfd):
    output = MergedOutput(lambda text, level: text)
    for node, text in (
        ("node1", b"(Pdb) "),
        ("node2", b"step 1\n(Pdb) "),
        ("node1", b"conti"),
        ("node1", b"nue\nstep 1\n"),
        ("node2", b"q\n"),
        ("node2", b"end\n"),
    ):
        output.write(STDERR, node, text)
    assert_written(output)
    assert capfd.readouterr().err == (
        "[node1] (Pdb) \n[node2] step 1\n[node2] (Pdb) \n[node1] (Pdb) continue\n"
        "[node1] step 1\n[node2] (Pdb) q\n[node2] end\n"
    )


def test_a_line_that_does_not_end_is_not_kept_for_ever(capfd):
    output = MergedOutput(lambda text, level: text)
    output.write(STDERR, "node1", b"x" * 70_000)
    output.write(STDERR, "node2", b"step 1\n")
    output.write(STDERR, "node1", b"y\n")
    assert_written(output)
    assert capfd.readouterr().err.endswith("x\n[node2] step 1\n[node1] y\n")


def test_prompts_are_held_shorter_on_a_terminal(pipe):
    ours, theirs = os.openpty()
    assert MergedOutput(str, stdout=theirs).hold(False) == 0.1
    assert MergedOutput(str, stdout=pipe[1]).hold(False) == 1.0
    for fd in (ours, theirs):
        os.close(fd)


@pytest.fixture
def pipe():
    reader, writer = os.pipe()
    yield reader, writer
    for fd in (reader, writer):
        os.close(fd)


@pytest.mark.parametrize("is_json", [False, True])
def test_each_line_of_a_block_has_the_name(pipe, is_json):
    reader, writer = pipe
    output = MergedOutput(lambda text, level: text, stdout=writer, is_json=is_json)
    output.write(STDOUT, "node1", b"one\n\ntwo\n50 %")
    output.write(STDOUT, "node1", b" done\n{}\n")
    assert_written(output)
    expected = b"[node1] one\n[node1] \n[node1] two\n[node1] 50 % done\n[node1] {}\n"
    assert os.read(reader, 200) == expected


def test_messages_in_json_have_no_name(capfd):
    output = MergedOutput(lambda text, level: text, is_json=True)
    output.write(STDERR, "node1", b'{"level": "INFO"}\ncareful\rso\n{}\nno newline')
    assert_written(output)
    err = capfd.readouterr().err
    assert err == '{"level": "INFO"}\n[node1] careful\rso\n{}\n[node1] no newline'


def test_what_a_reader_has_not_taken_is_counted(pipe):
    _, writer = pipe
    output = MergedOutput(lambda text, level: text, stdout=writer)
    lines = b"x" * 99 + b"\n"
    for _ in range(20):
        output.write(STDOUT, "", lines * 1000)
    assert output.is_full()
    output.request_end()
    wait_until(lambda: sum(loss.lines for loss in output.losses()) < 19_500, output.losses)
    assert not output.is_written()
    [loss] = output.losses()
    assert loss.lines - loss.size // 100 in (0, 1)
    assert str(loss) == f"{loss.size} bytes, {loss.lines} lines: its reader has not taken it"
    os.set_blocking(pipe[0], False)
    wait_until(lambda: output.is_written() or drain(pipe[0]), output.losses)
    assert output.losses() == []


def drain(reader):
    with contextlib.suppress(BlockingIOError):
        os.read(reader, 1 << 20)


def test_what_cannot_be_written_is_counted():
    full = os.open("/dev/full", os.O_WRONLY)
    output = MergedOutput(lambda text, level: text, stdout=full)
    for _ in range(3):
        output.write(STDOUT, "node1", b"one\ntwo\n")
    output.request_end()
    wait_until(output.is_written, output.losses)
    assert output.losses() == [OutputLoss("No space left on device", 72, 6)]
    os.close(full)


def test_a_reader_that_has_enough_is_no_loss():
    reader, writer = os.pipe()
    os.close(reader)
    output = MergedOutput(lambda text, level: text, stdout=writer)
    output.write(STDOUT, "node1", b"one\n")
    assert_written(output)
    os.close(writer)
