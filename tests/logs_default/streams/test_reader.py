from __future__ import annotations

import fcntl
import os
import threading
import time

import pytest
from plaunch_logs_default.streams.reader import READ_SIZE, Reader, Source

from helpers.sinks import Kept, Plain
from helpers.waiting import wait_until

FOREVER = 60.0  # seconds


@pytest.fixture
def open_source(log):
    def open_source(*sinks):
        read_end, write_end = os.pipe()
        source = Source(read_end, "stderr of local rank 0", log)
        for sink in sinks:
            source.add(sink)
        return source, write_end

    return open_source


def start(*sources):
    reader = Reader(sources)
    reader.start()
    return reader


def test_reads_each_source_to_its_end(open_source):
    before = len(os.listdir("/proc/self/fd"))
    kept = [Kept() for _ in range(5)]
    opened = [open_source(sink) for sink in kept]
    reader = start(*(source for source, _ in opened))
    for n, (_, write_end) in enumerate(opened):
        for k in range(3000):
            os.write(write_end, b"%d %050d\n" % (n, k))
        os.close(write_end)
    assert reader.finish(FOREVER)
    for n, sink in enumerate(kept):
        assert sink.data == b"".join(b"%d %050d\n" % (n, k) for k in range(3000))
        assert sink.is_closed
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_full_pipe_is_read_to_its_end(open_source):
    def wait_for_the_end(data):
        # Most of the pipe is to be read after the call of `finish`.
        wait_until(lambda: reader.is_finishing, "the call of finish")

    kept = Kept()
    source, write_end = open_source(Plain(wait_for_the_end), kept)
    size = 4 * READ_SIZE
    assert fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, size) == size
    assert os.write(write_end, b"x" * size) == size
    reader = start(source)
    assert reader.finish(FOREVER)
    assert kept.data == b"x" * size
    os.close(write_end)


def test_a_source_without_sinks_is_read(open_source):
    source, write_end = open_source()
    reader = start(source)
    for _ in range(100):
        os.write(write_end, b"x" * 60_000)  # would block without the reader
    os.close(write_end)
    assert reader.finish(FOREVER)
    assert reader.finish(FOREVER)  # again


def test_finish_does_not_wait_for_a_silent_process_with_the_pipe(open_source):
    kept = Kept()
    source, write_end = open_source(kept)
    reader = Reader([source], clock=lambda: 0.0)  # ends after `QUIET`, not after `LINGER`
    reader.start()
    os.write(write_end, b"last words")
    assert reader.finish(FOREVER)
    assert kept.data == b"last words"
    assert kept.is_closed
    with pytest.raises(BrokenPipeError):
        os.write(write_end, b"too late")
    os.close(write_end)


def test_finish_does_not_wait_for_endless_output(open_source):
    kept = Kept()
    source, write_end = open_source(Plain(lambda data: None), kept)
    os.write(write_end, b"last words")

    def flood():
        try:
            while True:
                os.write(write_end, b"x" * 100)
                time.sleep(0.001)
        except BrokenPipeError:
            os.close(write_end)

    thread = threading.Thread(target=flood)
    thread.start()
    reader = start(source)
    assert reader.finish(FOREVER)
    thread.join(FOREVER)
    assert not thread.is_alive()
    assert kept.data.startswith(b"last words")


def test_catch_up_waits_until_the_sinks_have_the_data(open_source):
    may_go_on = threading.Event()
    kept = Kept()
    source, write_end = open_source(Plain(lambda data: may_go_on.wait(FOREVER)), kept)
    os.write(write_end, b"last words")
    reader = start(source)
    assert not source.catch_up(0.05)
    assert not kept.data
    may_go_on.set()
    assert source.catch_up(FOREVER)
    assert kept.data == b"last words"
    os.write(write_end, b"!")
    assert source.catch_up(FOREVER)
    assert kept.data == b"last words!"
    os.close(write_end)
    assert reader.finish(FOREVER)
    assert source.catch_up(FOREVER)


def test_held_back_data_is_flushed_in_time(open_source):
    holding, other = Kept(hold=0.01), Kept()
    source, write_end = open_source(other, holding)
    reader = start(source)
    os.write(write_end, b"held")
    assert holding.flushed.wait(FOREVER)
    assert not other.flushed.is_set()
    os.close(write_end)
    assert reader.finish(FOREVER)


def test_a_failing_sink_is_removed_and_the_others_continue(open_source, log):
    def fail(data):
        raise ValueError("a defect")

    kept = Kept()
    source, write_end = open_source(Plain(fail), kept)
    reader = start(source)
    os.write(write_end, b"one\n")
    os.close(write_end)
    assert reader.finish(FOREVER)
    assert kept.data == b"one\n"
    (message,) = log.messages
    assert message == "stderr of local rank 0: Plain gets no more output: ValueError('a defect')"


def test_a_source_that_cannot_be_read_ends(log):
    fd = os.open("/", os.O_RDONLY)
    source = Source(fd, "stdout of local rank 7", log)
    assert source.read() is None
    assert log.messages == [
        "stdout of local rank 7 cannot be read any more: [Errno 21] Is a directory"
    ]
    source.close()


def test_an_empty_source_is_not_at_its_end(open_source):
    kept = Kept()
    source, write_end = open_source(kept)
    assert source.read() == 0
    os.write(write_end, b"x" * 50_000)
    assert source.unread() == 50_000
    assert source.read() == 50_000
    assert source.unread() == 0
    assert kept.data == b"x" * 50_000
    os.close(write_end)
    assert source.read() is None
    source.close()
    assert READ_SIZE >= 64 << 10


def test_finish_does_not_wait_for_a_stuck_sink(open_source):
    entered, free = threading.Event(), threading.Event()

    def hang(data):
        entered.set()
        free.wait(FOREVER)

    source, write_end = open_source(Plain(hang))
    reader = start(source)
    os.write(write_end, b"x")
    os.close(write_end)
    assert entered.wait(FOREVER)
    assert not reader.finish(timeout=0.01)
    free.set()
    assert reader.finish(FOREVER)


def test_finish_waits_for_slow_progress(open_source, monkeypatch):
    def one_read_per_join(timeout):
        seen = reader.reads
        turn.release()
        wait_until(lambda: reader.reads != seen or not reader.thread.is_alive(), "one read more")

    turn = threading.Semaphore(0)
    kept = Kept()
    source, write_end = open_source(Plain(lambda _: turn.acquire() and None), kept)
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4 * READ_SIZE)
    os.write(write_end, b"x" * 4 * READ_SIZE)
    os.close(write_end)
    reader = start(source)
    monkeypatch.setattr(reader.thread, "join", one_read_per_join)
    assert reader.finish(timeout=0.0)
    assert kept.data == b"x" * 4 * READ_SIZE


def test_a_failed_start_leaves_no_descriptor_open(open_source, monkeypatch):
    def fail(thread):
        raise RuntimeError("can't start new thread")

    before = len(os.listdir("/proc/self/fd"))
    source, write_end = open_source()
    reader = Reader([source])
    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(RuntimeError, match="no more processes or threads"):
        reader.start()
    source.close()
    os.close(write_end)
    assert len(os.listdir("/proc/self/fd")) == before
