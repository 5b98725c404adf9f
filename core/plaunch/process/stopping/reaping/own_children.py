"""The launcher's own children, told from orphans that it has inherited, and these reaped."""

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

# Seconds; who starts a process has an object that stands for it long before.
POPEN_WAIT = 1.0


def find_held() -> set[int]:
    """The numbers of all processes that a `Popen` object of this process stands for.

    It looks at every object that there is, which takes milliseconds.
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


class Zombies:
    """Reaps what was re-parented to the launcher, and has ended.

    Nothing needs an orphan's exit code. A child that a plugin has started is not touched:
    it is in the launcher's session, or was seen to have the launcher's mark, or a `Popen` object
    stands for it. One of which nothing but its end was seen is left for a second.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._own: set[Identity] = set()  # what the launcher itself has started
        self._suspects: dict[Identity, float] = {}

    def reap(self, children: Iterable[Process], is_launchers: Callable[[Process], bool]) -> None:
        """Reap those of the launcher's children that are orphans, and have ended.

        Args:
            children: the launcher's children, without workers, their known orphans, and the guard.
            is_launchers: whether a child that is alive is the launcher's own, or may be.
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
        # Leaders of sessions that were not seen alive are reaped, unless somebody holds them.
        now = self._clock()
        self._suspects = {
            process.identity: self._suspects.get(process.identity, now) for process in unclear
        }
        due = {pid for (pid, _), since in self._suspects.items() if now - since >= POPEN_WAIT}
        for pid in due - find_held() if due else ():
            reap(pid)


def reap(pid: int) -> bool:
    """Let the system forget a child that has ended; whether it did.

    By its number: waiting for any child would take exit codes away from others.
    """
    with contextlib.suppress(ChildProcessError):
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG) is not None
    return False
