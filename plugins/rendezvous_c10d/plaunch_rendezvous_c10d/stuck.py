"""Ends calls of torch that wait for a peer that never answers.

The constructor of torch's client reveals no socket before it has had an answer. But the kernel
shows in which system call a thread is; its first argument is the socket.
"""

from __future__ import annotations

import contextlib
import os
import socket

from plaunch.process import read_proc


def hang_up(thread_id: int, port: int) -> bool:
    """Shut down the connection on which a thread of this process receives.

    Args:
        thread_id: the kernel's id of the thread.
        port: the peer's port; other connections of the thread are left alone.

    Returns:
        Whether there was one. False if the kernel does not show it.
    """
    try:
        words = read_proc(f"self/task/{thread_id}/syscall").split()
        # "running", or the number of the system call, its arguments, and two addresses.
        with socket.socket(fileno=os.dup(int(words[1], 16))) as sock:
            if sock.getpeername()[1] != port:
                return False
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            return True
    except (OSError, IndexError, ValueError, OverflowError, TypeError):
        return False
