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
    from typing import TextIO


_DESCRIPTORS = {"stdout": 1, "stderr": 2}


def find_replaced(name: str, fd: int) -> TextIO | None:
    """What is in the place of `sys.<name>`, unless that writes where `fd` does.

    None as well if `fd` is not the standard stream of that name. And another standard stream is no
    such thing: the command line has stderr in the place of stdout, so that nothing is printed among
    what workers write.
    """
    stream: TextIO | None = getattr(sys, name)
    if stream is None or stream in (sys.__stdout__, sys.__stderr__) or fd != _DESCRIPTORS[name]:
        return None
    try:
        own, other = os.fstat(stream.fileno()), os.fstat(fd)
    except (OSError, ValueError, AttributeError):
        return stream  # it has no descriptor, or the process has none
    return None if (own.st_dev, own.st_ino) == (other.st_dev, other.st_ino) else stream


class TextWriter:
    """Writes bytes to a text stream, in the way of `os.write`; the descriptor is not looked at."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def __call__(self, fd: int, data: bytes) -> int:
        """Write all of `data`, but for a character whose end is still to come.

        Raises:
            OSError: the stream does not take it, for whatever reason.
        """
        del fd
        try:
            self._stream.write(self._decoder.decode(data))
            with contextlib.suppress(AttributeError):  # whatever has `write` will do
                self._stream.flush()
        except OSError:
            raise
        except Exception as error:
            raise OSError(errno.EIO, f"{type(error).__name__}: {error}") from error
        return len(data)
