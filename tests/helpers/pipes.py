"""Pipes that take nothing more."""

from __future__ import annotations

import contextlib
import os


def fill(writer):
    """Write into a pipe until it takes nothing more; how many bytes it took."""
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
    """The end to write into of a full pipe that nobody reads; whoever writes ends with it."""
    reader, writer = os.pipe()
    try:
        fill(writer)
        yield writer
    finally:
        os.close(writer)
        os.close(reader)
