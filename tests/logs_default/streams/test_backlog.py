from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from functools import partial
from pathlib import Path

import pytest
from plaunch_logs_default.streams import backlog

from helpers.machine_parts import need

Backlog = partial(backlog.Backlog, min_segment=100)


def read_all(backlog, size=1 << 16):
    pieces = []
    while backlog.size:
        pieces.append(backlog.take(size))
    return b"".join(pieces)


class Disk:
    """A disk of limited size."""

    def __init__(self, size):
        self.size = size
        self.files = []

    def open_file(self):
        self.files.append(tempfile.TemporaryFile(buffering=0))
        return self.files[-1]

    def used(self):
        return sum(os.fstat(f.fileno()).st_size for f in self.files if not f.closed)

    def pwrite(self, fd, data, position):
        growth = position + len(data) - os.fstat(fd).st_size
        room = len(data) - max(0, growth - (self.size - self.used()))
        if room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.pwrite(fd, data[:room], position)


def batch(first, lines=10):
    return b"".join(b"line %04d\n" % n for n in range(first, first + lines))


def test_data_comes_out_in_order():
    backlog = Backlog(0)
    written = [batch(n * 10) for n in range(20)]
    for data in written:
        backlog.append(data)
    assert (backlog.size, backlog.count_lines()) == (2000, 200)
    assert read_all(backlog) == b"".join(written)
    assert (backlog.size, backlog.count_lines(), backlog.dropped_lines) == (0, 0, 0)


def test_takes_whole_lines_if_possible():
    backlog = Backlog(0)
    backlog.append(b"one\ntwo\nthree, which is long\n")
    pieces = [backlog.take(size) for size in (6, 6, 6, 100)]
    assert pieces == [b"one\n", b"two\n", b"three,", b" which is long\n"]


def test_reading_and_writing_take_turns():
    backlog = Backlog(0)
    seen, written = b"", b""
    for n in range(50):
        written += batch(n)
        backlog.append(batch(n))
        seen += backlog.take(70)
    assert seen + read_all(backlog) == written


def test_read_data_frees_its_space():
    disk = Disk(1 << 20)
    backlog = Backlog(0, disk.open_file)
    for n in range(20):
        backlog.append(batch(n))
    full = disk.used()
    while backlog.size > 500:
        backlog.take(100)
    assert disk.used() < full / 2
    read_all(backlog)
    assert disk.used() == 0
    assert all(file.closed for file in disk.files)


def test_a_full_disk_drops_only_the_oldest_lines():
    disk = Disk(1000)
    backlog = Backlog(0, disk.open_file, disk.pwrite)
    for n in range(30):
        backlog.append(batch(n * 10))
    rest = read_all(backlog)
    whole = b"".join(batch(n * 10) for n in range(30))
    assert whole.endswith(rest)
    assert 500 <= len(rest) <= 1000
    assert backlog.dropped_lines == 300 - rest.count(b"\n")
    backlog.clear()


def test_lines_already_read_do_not_count_as_dropped():
    disk = Disk(200)
    backlog = Backlog(0, disk.open_file, disk.pwrite)
    backlog.append(batch(0))
    backlog.append(batch(10))
    assert backlog.take(50) == batch(0, 5)
    backlog.append(batch(20))
    assert backlog.dropped_lines == 5
    assert read_all(backlog) == batch(10) + batch(20)


def test_an_unwritable_disk_drops_the_oldest_lines_in_memory():
    disk = Disk(10)
    backlog = Backlog(200, disk.open_file, disk.pwrite)
    for n in range(3):
        backlog.append(batch(n * 10))
    assert (backlog.size, backlog.count_lines(), backlog.dropped_lines) == (100, 10, 20)
    assert all(file.closed for file in disk.files)
    disk.size = 1000
    for n in range(3, 5):
        backlog.append(batch(n * 10))
    assert disk.used() == 300
    assert read_all(backlog) == b"".join(batch(n * 10) for n in range(2, 5))
    assert (backlog.size, backlog.dropped_lines) == (0, 20)


def test_without_descriptors_the_last_file_grows():
    def fail():
        raise OSError(errno.EMFILE, "Too many open files")

    backlog = Backlog(0, fail)
    backlog.append(b"line\n")
    assert (backlog.size, backlog.dropped_lines) == (0, 1), "there was none"
    opens = iter([tempfile.TemporaryFile(buffering=0)])
    backlog = Backlog(0, lambda: next(opens, None) or fail())
    backlog.append(batch(0))
    backlog.append(batch(10))
    assert read_all(backlog) == batch(0) + batch(10)


def test_an_unreadable_file_drops_only_its_lines():
    disk = Disk(1 << 20)
    backlog = Backlog(0, disk.open_file)
    backlog.append(batch(0))
    backlog.append(batch(10))
    os.ftruncate(disk.files[0].fileno(), 0)
    assert backlog.take(100) == b""
    assert backlog.dropped_lines == 10
    assert read_all(backlog) == batch(10)


def test_the_files_are_unlinked(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    backlog = Backlog(0)
    backlog.append(b"line\n")
    assert list(tmp_path.iterdir()) == []
    links = [os.path.realpath(fd) for fd in Path("/proc/self/fd").iterdir()]
    assert sum(link.startswith(str(tmp_path)) for link in links) == 1
    backlog.clear()


@pytest.fixture
def tiny_disk(tmp_path):
    need("mounts")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path], check=True)
    yield tmp_path
    subprocess.run(["umount", "-l", tmp_path], check=True)


def test_a_real_full_disk(tiny_disk, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tiny_disk))
    backlog = Backlog(0, min_segment=64 << 10)
    for n in range(300):
        backlog.append(batch(n * 1000, 1000))
    rest = read_all(backlog)
    assert 500_000 < len(rest) < 1 << 20
    assert rest.endswith(batch(299_999, 1))
    assert backlog.dropped_lines == 300_000 - rest.count(b"\n")
