"""Prevents torch's reverse lookups from reaching name servers."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_SERVER_COUNT = 4  # `int retrans, retry; unsigned long options; int nscount` of struct __res_state


def forget_name_servers() -> None:
    """Make this thread resolve names from files only.

    torch looks up the names of both ends of each connection, for messages that it may never print.
    One lost datagram costs five seconds, and a dead name server as much for each connection. The
    resolver's state is per thread, and its layout part of the ABI of the GNU C library; with
    another library, this does nothing.
    """
    functions = _find_functions()
    if functions is not None:
        state_of_thread, initialize = functions
        if initialize() == 0:
            state_of_thread()[_SERVER_COUNT] = 0


@functools.cache
def _find_functions() -> tuple[Callable[[], Any], Callable[[], int]] | None:
    """Return the C functions that return and initialize a thread's resolver state."""
    import ctypes  # torch has loaded it already

    for library in (None, "libresolv.so.2"):
        with contextlib.suppress(OSError, AttributeError):
            functions = ctypes.CDLL(library)
            state_of_thread, initialize = functions.__res_state, functions.__res_init
            state_of_thread.restype = ctypes.POINTER(ctypes.c_int)
            return state_of_thread, initialize
    return None
