"""Looking at a worker from outside while it imports, after restarts."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from plaunch.agent import BeforeRendezvous, Stopping, WorkerExitSeen, WorkersStarted
from plaunch_hang.stacks import find_py_spy, own_stacks

from plaunch_events.imports import RoundImports, advise, is_enough

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plaunch.agent import Notification

    from plaunch_events.imports import Frame

    Look = Callable[[int], Sequence[Frame]]

logger = logging.getLogger("plaunch")

PAUSE = 0.25  # seconds between two looks, each of which takes 10 ms of a processor
_LOOK = 1.0  # seconds for a look; a later one would tell nothing
_LONGEST = 120.0  # seconds of imports
_BLIND = 40  # looks that fail from the first one on, after which there will be none that does not
_MOST_ROUNDS = 10


class ImportWatch:
    """Looks at the first worker of this node after each restart, until its imports are over.

    Called with notifications, on the agent's thread, where it waits for nobody: each round has a
    thread, which is told of the end of its round and not waited for. It ends after the look that
    it is busy with, if any, and forgets that one, whose process may be another one by then. Only
    `close` waits, for the bound of a look. There must be no watch in a process that forks workers,
    who would inherit what its threads hold.

    It never says why it sees nothing, but to who debugs: py-spy may not be installed, the system
    may not allow it, and workers need not be Python.

    Args:
        look: the stack of the main thread of the process with that number.
        pause: seconds between two looks.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        look: Look | None = None,
        *,
        pause: float = PAUSE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look = read_stack if look is None else look
        self._pause = pause
        self._clock = clock
        self._rounds: list[_Round] = []
        self._local_rank = 0

    def __call__(self, notification: Notification) -> None:
        """Begin with a round, or end with it."""
        if isinstance(notification, WorkersStarted):
            self._end()
            worker = next(iter(notification.group.workers), None)
            if worker is not None and worker.pid is not None:
                self._local_rank = worker.local_rank
                self._begin(worker.pid)
        elif isinstance(notification, (WorkerExitSeen, Stopping, BeforeRendezvous)):
            self._end()

    def close(self) -> str:
        """End with the launch; the advice in one line, or an empty text if there is none."""
        self._end()
        for item in self._rounds:
            item.thread.join(2 * _LOOK)
        return advise(self._imports(), self._local_rank)

    def _begin(self, pid: int) -> None:
        is_useless = any(item.is_blind for item in self._rounds) or is_enough(self._imports())
        if is_useless or len(self._rounds) == _MOST_ROUNDS:
            return
        watched = _Round(pid, self._look, self._pause, self._clock)
        self._rounds.append(watched)
        try:
            watched.thread.start()
        except RuntimeError as error:  # no more threads, or the interpreter is ending
            self._rounds.pop()
            _explain(error)

    def _end(self) -> None:
        if self._rounds:
            self._rounds[-1].over.set()

    def _imports(self) -> list[RoundImports]:
        return [item.imports for item in self._rounds]


class _Round:
    """A thread that looks at one worker."""

    def __init__(self, pid: int, look: Look, pause: float, clock: Callable[[], float]) -> None:
        self.imports = RoundImports()
        self.is_blind = False  # whether no look will succeed
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run, name="plaunch-imports", daemon=True)
        self._pid = pid
        self._look = look
        self._pause = pause
        self._clock = clock

    def _run(self) -> None:
        until = self._clock() + _LONGEST
        problem: Exception | None = None  # why there has been no stack, until there is one
        failures = 0
        has_seen = False
        # The first pause is for the interpreters, which are about to begin.
        while not self.over.wait(self._pause) and self._clock() < until:
            began = self._clock()
            try:
                stack = self._look(self._pid)
            except FileNotFoundError as error:
                self.is_blind, problem = True, error
                break
            except OSError as error:
                if has_seen:
                    continue  # a stack that changes cannot always be read
                problem = error
                failures += 1
                if failures == _BLIND:
                    self.is_blind = True
                    break
                continue
            has_seen, problem = True, None
            if self.over.is_set():
                break
            self.imports.note(stack, began, self._clock())
            if self.imports.is_over:
                break
        if problem is not None:
            _explain(problem)


def read_stack(pid: int) -> list[Frame]:
    """The stack of the main thread of a process, the outermost frame first; does not stop it.

    Raises:
        FileNotFoundError: there is no py-spy.
        OSError: the process could not be read; the message says why.
    """
    find_py_spy()
    seen = own_stacks({0: pid}, timeout=_LOOK)[0]
    if seen.main is None:
        raise OSError(seen.reason)
    return [(frame.function, frame.file) for frame in reversed(seen.main.frames)]


def _explain(error: Exception) -> None:
    logger.debug("what workers import cannot be seen: %s", error)
