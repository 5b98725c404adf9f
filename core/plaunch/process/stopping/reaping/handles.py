"""Which processes some object of this one stands for: those that its own code has started."""

from __future__ import annotations

import gc
import sys

# By the module where it is defined: what of the standard library stands for a started process.
_HANDLES = (
    ("subprocess", "Popen"),
    ("multiprocessing.popen_fork", "Popen"),
)

# Seconds; who starts a process has an object that stands for it long before.
HANDLE_WAIT = 1.0


def find_handled() -> set[int]:
    """The numbers of all processes that some object of this process stands for.

    It looks at every object that there is, which takes milliseconds.
    """
    kinds = tuple(
        kind
        for module, name in _HANDLES
        if isinstance(kind := getattr(sys.modules.get(module), name, None), type)
    )
    if not kinds:
        return set()
    return {
        pid
        for thing in gc.get_objects()
        if issubclass(type(thing), kinds) and isinstance(pid := getattr(thing, "pid", None), int)
    }
