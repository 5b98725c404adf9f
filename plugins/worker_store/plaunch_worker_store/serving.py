"""The program of the store host: torch's TCPStore, on a socket that is already listening.

It runs in the workers' interpreter, which may differ from the launcher's and need not have plaunch,
so it imports only the standard library and torch. It reports to the launcher on stdout. The
launcher keeps the other end of stdin; when that is closed, this process ends.

    python serving.py FD HOST PORT {lean,whole} SECONDS [FOLDER ...]

SIGALRM ends this process if it does not serve within so many seconds. The folders, if given, are
the module search path.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import resource
import signal
import sys
import types
from datetime import timedelta
from typing import Any

SERVING = "plaunch: the store is served"
BINDING = "plaunch: this torch binds the port itself"  # once the launcher has sent a line
NO_TORCH = 64  # exit code: this interpreter has no torch

_CONNECT_TIMEOUT = 20  # seconds for the server to become its own first client


def main(argv: list[str]) -> None:
    """Serve until stdin is closed, by the launcher or by its end."""
    fd, host, port, how, seconds, *folders = argv
    # The launcher ends this process after the workers. Signals to the whole job, as from
    # schedulers, are ignored.
    for signum in signal.valid_signals():
        with contextlib.suppress(OSError, ValueError):
            signal.signal(signum, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(seconds))
    _set_limits(is_lean=how == "lean")
    # Without the folder of this file, whose modules could shadow others of the same name.
    if sys.path and os.path.abspath(sys.path[0]) == os.path.dirname(os.path.abspath(__file__)):
        del sys.path[0]
    if folders:
        sys.path[:] = folders
    if importlib.util.find_spec("torch") is None:
        sys.exit(NO_TORCH)
    is_loaded = "torch" in sys.modules  # in a process that a fork server has forked
    create = _load_lean() if how == "lean" and not is_loaded else _load_whole()
    store = _serve(create, int(fd), host, int(port))
    signal.alarm(0)
    print(SERVING, flush=True)
    while os.read(0, 4096):
        pass
    del store
    os._exit(0)  # unloading torch is slow, and there is nothing to save


def _set_limits(*, is_lean: bool) -> None:
    """Raise the limit of descriptors; no core dumps of the lean attempt."""
    with contextlib.suppress(OSError, ValueError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if is_lean:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _load_lean() -> Any:
    """Load torch's TCPStore without the rest of torch, in a fifth of the time.

    It is in torch's C++ library, which Python can load without running torch's own code. This is
    not documented, so if it fails, the launcher starts this program again with all of torch.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError("torch is not a package")
    torch = types.ModuleType("torch")
    torch.__path__ = list(spec.submodule_search_locations)
    torch.__spec__ = spec
    sys.modules["torch"] = torch
    # The C++ side imports it, and adds names that are not used here.
    sys.modules["torch.distributed"] = types.ModuleType("torch.distributed")
    native = importlib.import_module("torch._C")
    native._c10d_init()
    return importlib.import_module("torch._C._distributed_c10d").TCPStore


def _load_whole() -> Any:
    from torch.distributed import TCPStore

    return TCPStore


def _serve(create: Any, fd: int, host: str, port: int) -> Any:
    options: dict[str, Any] = {
        "is_master": True,
        "wait_for_workers": False,
        "timeout": timedelta(seconds=_CONNECT_TIMEOUT),
    }
    try:
        try:
            return create(host, port, master_listen_fd=fd, **options)
        except RuntimeError as error:
            # torch has two servers. Its default, libuv's, may be left out when torch is built.
            if "without libuv" not in str(error):
                raise
            options["use_libuv"] = False
            return create(host, port, master_listen_fd=fd, **options)
    except TypeError:
        pass  # a torch without the argument `master_listen_fd`
    os.close(fd)
    print(BINDING, flush=True)
    os.read(0, 1)
    return create(host, port, **options)


if __name__ == "__main__":
    main(sys.argv[1:])
