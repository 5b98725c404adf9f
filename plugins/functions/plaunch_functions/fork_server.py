"""multiprocessing's "forkserver", with a worker that is bound to processors before it does a thing.

A worker that the server has forked imports the user's `__main__` before any of our code runs, so
that it would be too late to bind itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
from multiprocessing import forkserver, popen_forkserver, util
from typing import TYPE_CHECKING, Any

from plaunch_functions.payload import make_payload

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from plaunch.process.binding import Binding


def fork_in_server(process: Any, binding: Binding | None) -> popen_forkserver.Popen:
    """Start `process` in the fork server, bound if need be."""
    if binding is not None:
        return BoundForkServerPopen(process, binding)
    popen: popen_forkserver.Popen = process._Popen(process)
    return popen


class BoundForkServerPopen(popen_forkserver.Popen):
    """One worker of the fork server; `pid`, `poll` and the rest are as multiprocessing has them."""

    def __init__(self, process: BaseProcess, binding: Binding) -> None:
        self._fds: list[int]  # what pickling found that the worker has to inherit
        self._binding = binding
        super().__init__(process)

    def _launch(self, process_obj: Any) -> None:
        payload = make_payload(self, process_obj)
        self.sentinel, writer = forkserver.connect_to_new_process(self._fds)
        # The worker keeps the other end open to notice the launcher's end.
        self.finalizer = util.Finalize(self, _close, (os.dup(writer), self.sentinel))
        with open(writer, "wb") as pipe:
            self.pid = forkserver.read_signed(self.sentinel)
            # It waits for its payload, and has not looked at anything of the user's.
            try:
                self._binding.bind(self.pid)
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
                raise
            pipe.write(payload)


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)
