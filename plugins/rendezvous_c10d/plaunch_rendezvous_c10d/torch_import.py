"""The only module that imports torch, and limits what its C++ code writes to stderr.

Each wait that times out prints two lines, and each failed attempt to connect a stack of thirty. All
of it is also raised as an exception, and reported by plaunch where it matters.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
from typing import TYPE_CHECKING

from plaunch.errors import PluginLoadError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

LEVEL_VARIABLE = "TORCH_CPP_LOG_LEVEL"
ERROR, FATAL = 2, 3  # levels of messages
_LIBRARY, _FLAG = "libc10.so", "FLAGS_caffe2_log_level"


def load_distributed() -> ModuleType:
    """Import `torch.distributed`, which takes a second or more, and return it.

    Messages of its C++ code during the import are suppressed. torch reads its log level then, so
    the variable is set only for the import and never reaches the workers. After the import,
    `torch_log` does the same.

    Raises:
        PluginLoadError: torch is not installed, or cannot be loaded.
    """
    sets_level = LEVEL_VARIABLE not in os.environ and "torch" not in sys.modules
    if sets_level:
        os.environ[LEVEL_VARIABLE] = "ERROR"
    try:
        import torch.distributed

        if not torch.distributed.is_available():
            raise ImportError("this build of torch has no torch.distributed")  # noqa: TRY301
        distributed: ModuleType = torch.distributed
        return distributed
    except (ImportError, OSError) as error:
        text = " ".join(str(error).split())
        missing = isinstance(error, ModuleNotFoundError) and str(error.name).startswith("torch")
        advice = "; pip install 'plaunch[c10d]'" if missing else ""
        raise PluginLoadError(
            f"rendezvous backend 'c10d' cannot be loaded: {type(error).__name__}: {text}{advice}"
        ) from error
    finally:
        if sets_level:
            os.environ.pop(LEVEL_VARIABLE, None)


class TorchLog:
    """Raises the level of torch's log in this process while a caller wants that.

    Args:
        level: torch's variable; None if it must not be changed.
    """

    def __init__(self, level: ctypes.c_int | None) -> None:
        self._level = level
        self._lock = threading.Lock()
        self._before = 0  # the level before it was raised
        self._wanted: list[int] = []

    @contextlib.contextmanager
    def limited(self, level: int) -> Iterator[None]:
        """Print only messages of at least this level within a `with` block."""
        self._limit(level, self._wanted.append)
        try:
            yield
        finally:
            self._limit(level, self._wanted.remove)

    def _limit(self, level: int, change: Callable[[int], None]) -> None:
        with self._lock:
            if self._level is not None and not self._wanted:
                self._before = self._level.value
            change(level)
            if self._level is not None:
                self._level.value = max(self._before, *self._wanted, 0)


@functools.cache
def torch_log() -> TorchLog:
    """Return the log of torch, which must be loaded.

    It is left unchanged if the user has set `TORCH_CPP_LOG_LEVEL`, or if torch has no such
    variable.
    """
    if LEVEL_VARIABLE in os.environ:
        return TorchLog(None)
    try:
        torch = str(sys.modules["torch"].__file__)
        library = os.path.join(os.path.dirname(torch), "lib", _LIBRARY)
        return TorchLog(ctypes.c_int.in_dll(ctypes.CDLL(library), _FLAG))
    except (KeyError, OSError, ValueError):
        return TorchLog(None)
