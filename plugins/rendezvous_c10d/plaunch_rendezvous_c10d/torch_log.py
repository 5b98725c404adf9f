"""Limits what torch's C++ code writes to stderr during our calls.

Each wait that times out makes it print two lines, and each attempt to connect that fails a stack of
thirty. All of it is raised as well, and said by us where it matters.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LEVEL_VARIABLE = "TORCH_CPP_LOG_LEVEL"
_ERROR, _FATAL = 2, 3  # what is below is not said
_LIBRARY, _FLAG = "libc10.so", "FLAGS_caffe2_log_level"


class TorchLog:
    """The level of torch's log in this process, which is raised while a user wants it.

    Args:
        level: where torch keeps it; None if it is not to be touched.
    """

    def __init__(self, level: ctypes.c_int | None) -> None:
        self._level = level
        self._lock = threading.Lock()
        self._before = 0  # what it was when nobody had raised it
        self._wanted: list[int] = []

    def keep_quiet(self) -> Callable[[], None]:
        """Leave out warnings until the result is called, once or more often."""
        self._raise_to(_ERROR)
        is_quiet = [True]

        def release() -> None:
            if is_quiet:
                is_quiet.clear()
                self._lower_from(_ERROR)

        return release

    @contextlib.contextmanager
    def silenced(self) -> Iterator[None]:
        """Leave out errors as well, within a `with` block."""
        self._raise_to(_FATAL)
        try:
            yield
        finally:
            self._lower_from(_FATAL)

    def _raise_to(self, level: int) -> None:
        with self._lock:
            if self._level is not None and not self._wanted:
                self._before = self._level.value
            self._wanted.append(level)
            self._apply()

    def _lower_from(self, level: int) -> None:
        with self._lock:
            self._wanted.remove(level)
            self._apply()

    def _apply(self) -> None:
        if self._level is not None:
            self._level.value = max(self._before, *self._wanted, 0)


@functools.cache
def torch_log() -> TorchLog:
    """The log of torch, which must have been loaded.

    It stays as it is if the user has set `TORCH_CPP_LOG_LEVEL`, or if torch keeps it elsewhere.
    """
    if LEVEL_VARIABLE in os.environ:
        return TorchLog(None)
    try:
        torch = str(sys.modules["torch"].__file__)
        library = os.path.join(os.path.dirname(torch), "lib", _LIBRARY)
        return TorchLog(ctypes.c_int.in_dll(ctypes.CDLL(library), _FLAG))
    except (KeyError, OSError, ValueError):
        return TorchLog(None)
