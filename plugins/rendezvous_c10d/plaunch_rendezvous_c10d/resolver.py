"""Keeps torch's reverse look-ups away from name servers."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_SERVER_COUNT = 4  # `int retrans, retry; unsigned long options; int nscount` of struct __res_state


def forget_name_servers() -> None:
    """Let this thread resolve from files only, from now on.

    Torch asks for the names of both ends of each connection that it opens, for messages that it
    may never print. One lost datagram then costs five seconds, a dead name server as much
    for each connection. The resolver's state belongs to the thread, and its layout to the ABI of
    the GNU C library; with another library nothing happens.
    """
    functions = _find_functions()
    if functions is not None:
        state_of_thread, initialize = functions
        if initialize() == 0:
            state_of_thread()[_SERVER_COUNT] = 0


@functools.cache
def _find_functions() -> tuple[Callable[[], Any], Callable[[], int]] | None:
    """The C functions that return a thread's resolver state and initialize it."""
    import ctypes  # torch has loaded it before

    for library in (None, "libresolv.so.2"):
        with contextlib.suppress(OSError, AttributeError):
            functions = ctypes.CDLL(library)
            state_of_thread, initialize = functions.__res_state, functions.__res_init
            state_of_thread.restype = ctypes.POINTER(ctypes.c_int)
            return state_of_thread, initialize
    return None
