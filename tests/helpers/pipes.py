"""Full pipes."""

from __future__ import annotations

import contextlib
import os


def fill(writer):
    """Fill a pipe; return the number of bytes."""
    os.set_blocking(writer, False)
    size = 0
    try:
        while True:
            size += os.write(writer, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writer, True)
    return size


@contextlib.contextmanager
def full_pipe():
    """Yield the write end of a full pipe; blocked writers fail after the block."""
    reader, writer = os.pipe()
    try:
        fill(writer)
        yield writer
    finally:
        os.close(writer)
        os.close(reader)
