"""Reading files that workers may have written: bounded, and regular ones only."""

from __future__ import annotations

import os
import stat
from typing import BinaryIO

_BLOCK = 1 << 16


def read_start(path: str, most: int) -> bytes:
    """The first `most` bytes of a file.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    with _open(path) as file:
        return file.read(most)


def read_last_lines(path: str, lines: int, most: int) -> tuple[bytes, str]:
    """The last lines of a file, read from its end, and what was left out of it, in words.

    Args:
        path: the file.
        lines: how many of them.
        most: how many bytes at most.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    with _open(path) as file:
        size = begin = file.seek(0, os.SEEK_END)
        blocks: list[bytes] = []
        newlines = 0
        while begin > 0 and size - begin < most and newlines <= lines:
            begin = max(begin - _BLOCK, size - most, 0)
            file.seek(begin)
            # Of a file that has shrunk meanwhile, less comes.
            blocks.insert(0, file.read(size - begin - sum(map(len, blocks))))
            newlines += blocks[0].count(b"\n")
    data = b"".join(blocks)
    if begin > 0 and newlines <= lines:
        # Cut for its bytes: the first line is none, unless it is all that there is.
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


def _open(path: str) -> BinaryIO:
    # Neither a named pipe, which would be waited for, nor a link to somewhere else.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"{path!r} is not a regular file")
    return open(fd, "rb")
