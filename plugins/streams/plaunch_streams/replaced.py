"""What Python code has put in the place of `sys.stdout` or `sys.stderr`.

`contextlib.redirect_stdout`, a notebook and a test put an object there, and a descriptor knows
nothing of it. What the launcher itself shows of its workers, teed lines, goes to that object, as
torchrun's does; what workers write themselves goes to the descriptor.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO


def find_replaced(name: str, fd: int) -> TextIO | None:
    """What is in the place of `sys.<name>`, unless that writes where `fd` does.

    None as well if `fd` is not the standard stream of that name. And another standard stream is no
    such thing: the command line has stderr in the place of stdout, so that nothing is printed among
    what workers write.
    """
    stream: TextIO | None = getattr(sys, name)
    if stream is None or stream in (sys.__stdout__, sys.__stderr__):
        return None
    if fd != {"stdout": 1, "stderr": 2}[name]:
        return None
    try:
        return None if os.path.sameopenfile(stream.fileno(), fd) else stream
    except (OSError, ValueError, AttributeError):
        return stream  # it has no descriptor, or the process has none


def text_writer(stream: TextIO) -> Callable[[int, bytes], int]:
    """A function that writes bytes to a text stream, in the way of `os.write`.

    The descriptor is not looked at. All is written, but for a character whose end is still to come.
    Whatever the stream raises becomes an OSError.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def write(_fd: int, data: bytes) -> int:
        try:
            stream.write(decoder.decode(data))
            with contextlib.suppress(AttributeError):  # whatever has `write` will do
                stream.flush()
        except OSError:
            raise
        except Exception as error:
            raise OSError(errno.EIO, f"{type(error).__name__}: {error}") from error
        return len(data)

    return write
