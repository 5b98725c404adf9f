"""Reading files that workers may have written: regular files only, up to a limit."""

from __future__ import annotations

import itertools
import os
import stat
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator

_BLOCK = 1 << 16


def read_start(path: str, most: int) -> bytes:
    """Read the first `most` bytes of a file.

    Raises:
        OSError: it cannot be read, or is not a regular file.
    """
    with _open(path) as file:
        return file.read(most)


def read_last_lines(path: str, lines: int, most: int) -> tuple[bytes, str]:
    """Read the last lines of a log; also return a remark on what was left out.

    The older parts of a rotated log are `<path>.1`, `<path>.2` and so on.

    Args:
        path: the file.
        lines: the maximum number of lines.
        most: the maximum number of bytes.

    Raises:
        OSError: it cannot be read, or is not a regular file.
    """
    size = taken = newlines = 0
    blocks: list[bytes] = []
    for file in _open_all(path):
        with file:
            begin = file.seek(0, os.SEEK_END)
            size += begin
            while begin > 0 and taken < most and newlines <= lines:
                end, begin = begin, max(begin - min(_BLOCK, most - taken), 0)
                file.seek(begin)
                # Of a file that has shrunk meanwhile, less comes.
                blocks.insert(0, file.read(end - begin))
                taken += end - begin
                newlines += blocks[0].count(b"\n")
    data = b"".join(blocks)
    if taken < size and newlines <= lines:
        # The byte limit was reached: drop the incomplete first line, unless it is the only one.
        data = data[data.find(b"\n", 0, len(data) - 1) + 1 :]
    end = len(data) - data.endswith(b"\n")
    for _ in range(lines):
        end = data.rfind(b"\n", 0, end)
        if end < 0:
            break
    else:
        data = data[end + 1 :]
    left_out = size - len(data)
    if left_out <= 0:
        return data, ""
    return data, f"the end; {left_out} bytes before it are left out"


def _open_all(path: str) -> Iterator[BinaryIO]:
    yield _open(path)
    for number in itertools.count(1):
        try:
            older = _open(f"{path}.{number}")
        except OSError:
            return
        yield older


def _open(path: str) -> BinaryIO:
    # Open neither a named pipe, which would block, nor a link to another file.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"{path!r} is not a regular file")
    return open(fd, "rb")
