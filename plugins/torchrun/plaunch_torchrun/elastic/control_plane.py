"""The workers' side of torch's control plane; the name is torch's.

It serves stack dumps and similar data from inside a worker, on the socket that
`TORCH_WORKER_SERVER_SOCKET` names. With `--flight-recorder`, the plugin `stacks` sets the variable
and queries the server.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from plaunch_torchrun.error_handler import get_error_handler

if TYPE_CHECKING:
    from collections.abc import Iterator

TORCH_WORKER_SERVER_SOCKET = "TORCH_WORKER_SERVER_SOCKET"


@contextlib.contextmanager
def worker_main() -> Iterator[None]:
    """Create a context for a worker's main function; also a decorator, as in `@worker_main()`.

    If `TORCH_WORKER_SERVER_SOCKET` is set, torch's server listens there during the call. An
    exception is written to the error file, as by `record`.

    Raises:
        ImportError: the variable is set, and torch is not installed.
    """
    handler = get_error_handler()
    handler.initialize()
    with contextlib.ExitStack() as stack:
        try:
            path = os.environ.get(TORCH_WORKER_SERVER_SOCKET)
            if path is not None:
                from torch._C._distributed_c10d import _WorkerServer

                stack.callback(_WorkerServer(path).shutdown)
            yield
        except Exception as error:
            handler.record_exception(error)
            raise
