"""Ends calls of torch that wait for a peer which never says anything.

The constructor of its client gives out no socket before it has had an answer. But the kernel tells
in which call a thread is, and that call's first argument is the socket.
"""

from __future__ import annotations

import contextlib
import os
import socket

from plaunch.process import read_proc


def hang_up(thread_id: int, port: int) -> bool:
    """Shut down the connection that a thread of this process receives from.

    Args:
        thread_id: the kernel's number of the thread.
        port: the peer's; whatever the thread does with anybody else goes on.

    Returns:
        Whether there was one. A kernel that does not tell says no.
    """
    try:
        words = read_proc(f"self/task/{thread_id}/syscall").split()
        # "running" if it is in none, else a number, its arguments, and two addresses.
        with socket.socket(fileno=os.dup(int(words[1], 16))) as sock:
            if sock.getpeername()[1] != port:
                return False
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            return True
    except (OSError, IndexError, ValueError, OverflowError, TypeError):
        return False
