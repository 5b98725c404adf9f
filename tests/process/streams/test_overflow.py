from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from typing import IO, TYPE_CHECKING

import pytest
from plaunch.process.streams import overflow as overflow_module
from plaunch.process.streams.overflow import Overflow

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def read_all(overflow: Overflow, size: int = 1 << 16) -> bytes:
    pieces = []
    while overflow.unread:
        pieces.append(overflow.read(size))
    return b"".join(pieces)


class Disk:
    """A disk of limited size: opens files, and lets only so many bytes be in them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.files: list[IO[bytes]] = []

    def open_file(self) -> IO[bytes]:
        self.files.append(tempfile.TemporaryFile(buffering=0))
        return self.files[-1]

    def used(self) -> int:
        return sum(os.fstat(f.fileno()).st_size for f in self.files if not f.closed)

    def pwrite(self, fd: int, data: memoryview, position: int) -> int:
        growth = position + len(data) - os.fstat(fd).st_size
        room = len(data) - max(0, growth - (self.size - self.used()))
        if room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.pwrite(fd, data[:room], position)


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overflow_module, "MIN_SEGMENT", 100)


def batch(first: int, lines: int = 10) -> bytes:
    return b"".join(b"line %04d\n" % n for n in range(first, first + lines))


def test_gives_back_what_it_got_in_order() -> None:
    overflow = Overflow()
    written = [batch(n * 10) for n in range(20)]
    for data in written:
        assert overflow.append(data)
    assert (overflow.unread, overflow.unread_lines) == (2000, 200)
    assert read_all(overflow) == b"".join(written)
    assert (overflow.unread, overflow.unread_lines, overflow.dropped_lines) == (0, 0, 0)


def test_reads_whole_lines_where_there_are_line_ends() -> None:
    overflow = Overflow()
    overflow.append(b"one\ntwo\nthree, which is long\n")
    assert overflow.read(6) == b"one\n"
    assert overflow.read(6) == b"two\n"
    assert overflow.read(6) == b"three,"
    assert overflow.read(100) == b" which is long\n"


def test_reading_and_writing_take_turns() -> None:
    overflow = Overflow()
    seen, written = b"", b""
    for n in range(50):
        written += batch(n)
        overflow.append(batch(n))
        seen += overflow.read(70)
    assert seen + read_all(overflow) == written


def test_what_has_been_read_gives_its_space_back() -> None:
    disk = Disk(1 << 20)
    overflow = Overflow(disk.open_file)
    for n in range(20):
        overflow.append(batch(n))
    full = disk.used()
    while overflow.unread > 500:
        overflow.read(100)
    assert disk.used() < full / 2
    read_all(overflow)
    assert disk.used() == 0
    assert all(file.closed for file in disk.files)


def test_a_full_disk_costs_the_oldest_lines_and_only_those() -> None:
    disk = Disk(1000)
    overflow = Overflow(disk.open_file, disk.pwrite)
    for n in range(30):
        assert overflow.append(batch(n * 10))
    rest = read_all(overflow)
    whole = b"".join(batch(n * 10) for n in range(30))
    assert whole.endswith(rest)
    assert 500 <= len(rest) <= 1000
    assert overflow.dropped_lines == 300 - rest.count(b"\n")
    overflow.close()


def test_lines_that_were_read_already_are_not_counted_as_dropped() -> None:
    disk = Disk(200)
    overflow = Overflow(disk.open_file, disk.pwrite)
    overflow.append(batch(0))
    overflow.append(batch(10))
    assert overflow.read(50) == batch(0, 5)
    assert overflow.append(batch(20))
    assert overflow.dropped_lines == 5
    assert read_all(overflow) == batch(10) + batch(20)


def test_a_disk_that_takes_nothing_is_said_so_and_costs_nothing_that_is_kept() -> None:
    disk = Disk(10)
    overflow = Overflow(disk.open_file, disk.pwrite)
    assert not overflow.append(batch(0))
    assert (overflow.unread, overflow.unread_lines, overflow.dropped_lines) == (0, 0, 0)
    assert all(file.closed for file in disk.files)
    disk.size = 1000
    assert overflow.append(batch(10))
    assert read_all(overflow) == batch(10)


def test_no_file_can_be_opened() -> None:
    def fail() -> IO[bytes]:
        raise OSError(errno.EMFILE, "Too many open files")

    assert not Overflow(fail).append(b"line\n")


def test_with_no_more_descriptors_the_last_file_grows() -> None:
    disk = Disk(1 << 20)
    overflow = Overflow(disk.open_file)
    overflow.append(batch(0))

    def fail() -> IO[bytes]:
        raise OSError(errno.EMFILE, "Too many open files")

    overflow._open_file = fail
    assert overflow.append(batch(10))
    assert read_all(overflow) == batch(0) + batch(10)


def test_a_disk_that_loses_data_costs_that_part_only() -> None:
    disk = Disk(1 << 20)
    overflow = Overflow(disk.open_file)
    overflow.append(batch(0))
    overflow.append(batch(10))
    os.ftruncate(disk.files[0].fileno(), 0)
    with pytest.raises(OSError, match="shorter"):
        overflow.read(100)
    assert overflow.dropped_lines == 10
    assert read_all(overflow) == batch(10)


def test_the_files_have_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    overflow = Overflow()
    overflow.append(b"line\n")
    assert list(tmp_path.iterdir()) == []
    assert str(tmp_path) in os.readlink(f"/proc/self/fd/{overflow._segments[0].file.fileno()}")
    overflow.close()


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path],
        check=False,
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip("this user may not mount")
    yield tmp_path
    subprocess.run(["umount", "-l", tmp_path], check=True)


def test_a_real_full_disk(tiny_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tiny_disk))
    monkeypatch.setattr(overflow_module, "MIN_SEGMENT", 64 << 10)
    overflow = Overflow()
    for n in range(300):
        assert overflow.append(batch(n * 1000, 1000))
    rest = read_all(overflow)
    assert 500_000 < len(rest) < 1 << 20
    assert rest.endswith(batch(299_999, 1))
    assert overflow.dropped_lines == 300_000 - rest.count(b"\n")
