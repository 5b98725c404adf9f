"""Detects what forked children must not share: threads, files, memory, devices."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

from .known_lines import HARMLESS_THREADS

_HARMLESS = frozenset(("/dev/null", "/dev/random", "/dev/urandom", "/dev/zero"))
# Modules of torch for devices; `is_initialized` returns whether a device is in use.
_DEVICES = ("torch.cuda", "torch.xpu", "torch.mps", "torch.mtia", "torch_npu", "habana_frameworks")


class ForkHazards:
    """Compares the process before and after the imports."""

    def __init__(self) -> None:
        self._files = _open_files()
        self._mappings = _shared_mappings()

    def problems(self) -> list[str]:
        """Return why this process cannot be forked; empty if it can."""
        found = []
        devices = _used_devices()
        if devices:
            found.append("initialized: " + ", ".join(devices))
        threads = _find_threads()
        if threads:
            found.append(f"{len(threads)} thread(s) run: {', '.join(threads)}")
        if _has_children():
            found.append("a process was started")
        new = sorted(
            name
            for fd, name in _open_files().items()
            if self._files.get(fd) != name and name not in _HARMLESS
        )
        if new:
            found.append("open: " + ", ".join(new))
        mappings = sorted(_shared_mappings() - self._mappings)
        if mappings:
            found.append("shared memory: " + ", ".join(mappings))
        return found


def _open_files() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing
            found[int(name)] = os.readlink("/proc/self/fd/" + name)
    return found


def _shared_mappings() -> set[str]:
    with open("/proc/self/maps") as file:
        lines = [line.split(None, 5) for line in file]
    return {
        line[5].strip() if len(line) > 5 else "at " + line[0]
        for line in lines
        if "w" in line[1] and "s" in line[1]
    }


def _find_threads() -> list[str]:
    """Return the names of the threads beside the main one, without those that end at a fork.

    OpenBLAS, which numpy uses, ends its threads before every fork and starts them when needed.
    """
    # Until it is renamed, a thread of Python has the process's name in the kernel.
    threading: Any = sys.modules.get("threading")
    known = {one.native_id: one.name for one in threading.enumerate()} if threading else {}
    child = os.fork()
    if not child:
        os._exit(0)
    with contextlib.suppress(ChildProcessError):  # a module ignores SIGCHLD
        os.waitpid(child, 0)
    names = []
    for task in map(int, os.listdir("/proc/self/task")):
        if task == os.getpid():
            continue
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/comm") as file:
            name = file.read().strip()  # fails if it has ended
            names.append(known.get(task, name))
    return sorted(name for name in names if name not in HARMLESS_THREADS)


def _has_children() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def _used_devices() -> list[str]:
    used = []
    for name in _DEVICES:
        is_initialized: Any = getattr(sys.modules.get(name), "is_initialized", None)
        if callable(is_initialized) and is_initialized():
            used.append(name)
    return used
