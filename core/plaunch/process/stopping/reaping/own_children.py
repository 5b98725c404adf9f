"""Reaps orphans that the launcher has inherited, but not the children that it has started."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from plaunch.process.kernel.processes import Identity, Process

_POPEN = ("subprocess", "multiprocessing.popen_fork")  # modules with a class of that name

# Seconds after which code that has started a process has created its `Popen` object.
POPEN_WAIT = 1.0


def find_held() -> set[int]:
    """The ids of all processes with a `Popen` object in this process.

    This goes through all objects of the interpreter, which takes milliseconds.
    """
    kinds = tuple(
        kind
        for module in _POPEN
        if isinstance(kind := getattr(sys.modules.get(module), "Popen", None), type)
    )
    if not kinds:
        return set()
    return {
        pid
        for thing in gc.get_objects()
        if issubclass(type(thing), kinds) and isinstance(pid := getattr(thing, "pid", None), int)
    }


class ZombieReaper:
    """Reaps orphans that were re-parented to the launcher and have ended.

    Their exit codes are not needed. A child that a plugin has started is not reaped: it is in the
    launcher's session, or was seen with the launcher's mark, or has a `Popen` object. A process
    that was never seen alive is reaped after a second.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._own: set[Identity] = set()  # children that the launcher has started
        self._suspects: dict[Identity, float] = {}

    def reap(self, children: Iterable[Process], is_launchers: Callable[[Process], bool]) -> None:
        """Reap those of the launcher's children that are orphans, and have ended.

        Args:
            children: the launcher's children, without workers, their known orphans, and the guard.
            is_launchers: whether the launcher has, or may have, started a living child.
        """
        session = os.getsid(0)
        own: set[Identity] = set()
        unclear: list[Process] = []
        for process in children:
            if process.session == session:
                continue
            if process.identity in self._own:
                own.add(process.identity)
            elif process.session != process.pid:
                if not process.is_alive:
                    reap(process.pid)
            elif not process.is_alive:
                unclear.append(process)
            elif is_launchers(process):
                own.add(process.identity)
        self._own = own
        # Leaders of sessions that were not seen alive are reaped, unless a `Popen` object waits.
        now = self._clock()
        self._suspects = {
            process.identity: self._suspects.get(process.identity, now) for process in unclear
        }
        due = {pid for (pid, _), since in self._suspects.items() if now - since >= POPEN_WAIT}
        for pid in due - find_held() if due else ():
            reap(pid)


def reap(pid: int) -> bool:
    """Reap a child if it has ended; whether it had.

    By its id: waiting for any child would take exit codes away from other code.
    """
    with contextlib.suppress(ChildProcessError):
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG) is not None
    return False
