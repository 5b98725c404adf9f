"""What signals do in this process, and that plugins leave it as it was."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

from plaunch.process import read_masks

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger("plaunch")

Handler = Callable[[int, FrameType | None], object] | int | None

# What the launcher and its workers, which inherit it, rely on. Not those of faults, timers and the
# size of a terminal: debuggers, profilers and libraries for input take them, and harm nobody.
KEPT = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGPIPE,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCHLD,
    signal.SIGCONT,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGXCPU,
)
_STATUS = "/proc/self/status"


class Dispositions(NamedTuple):
    """What each signal of `KEPT` does, as Python knows it and as the kernel does.

    Args:
        handlers: the handlers.
        kernels: the masks of what is ignored and of what is caught; None if that is not known.
        blocked: what this thread, the main one, blocks, as a mask.
    """

    handlers: tuple[Handler, ...]
    kernels: tuple[int, int] | None
    blocked: int

    @classmethod
    def look(cls) -> Dispositions:
        """How it is now."""
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        mask: int = sum(1 << (signum - 1) for signum in blocked)
        return cls(tuple(map(signal.getsignal, KEPT)), read_masks(_STATUS), mask)

    def changed(self, now: Dispositions) -> list[signal.Signals]:
        """Which signals do something else `now`, as far as is known."""
        if self == now:
            return []
        differs = self.blocked ^ now.blocked
        if self.kernels is not None and now.kernels is not None:
            differs |= (self.kernels[0] ^ now.kernels[0]) | (self.kernels[1] ^ now.kernels[1])
        return [
            signum
            for signum, before, after in zip(KEPT, self.handlers, now.handlers, strict=True)
            if before != after or differs & 1 << (signum - 1)
        ]

    def put_back(self, signum: signal.Signals) -> bool:
        """Let a signal do again what it did; False if Python cannot see to it here."""
        previous = self.handlers[KEPT.index(signum)]
        # None is a handler that was not installed from Python.
        if previous is None:
            return False
        signal.signal(signum, previous)
        how = signal.SIG_BLOCK if self.blocked & 1 << (signum - 1) else signal.SIG_UNBLOCK
        signal.pthread_sigmask(how, [signum])
        return True


@contextlib.contextmanager
def kept_dispositions(who: str, doing: str) -> Iterator[None]:
    """Run a plugin's code, or wait for it; what it changes about signals is put back, and said.

    Only on the main thread. On another one of somebody's program, the main one does what it likes
    meanwhile, also about signals, and nothing can be put back.

    Args:
        who: the plugin, for messages.
        doing: what it does meanwhile, such as the name of a hook.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = Dispositions.look()
    try:
        yield
    finally:
        changed = before.changed(Dispositions.look())
        for are_back in (True, False):
            names = [signum.name for signum in changed if before.put_back(signum) is are_back]
            if names:
                logger.warning(
                    "%s has changed what %s %s (%s); %s. The launcher handles signals; use a "
                    "signal policy (--signal-policy) to change what they do",
                    who,
                    ", ".join(names),
                    "does" if len(names) == 1 else "do",
                    doing,
                    "plaunch has undone this" if are_back else "plaunch cannot undo this here",
                )
