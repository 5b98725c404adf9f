"""Sampling the stack of a worker during its imports, after restarts."""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import TYPE_CHECKING

from plaunch.agent import (
    BeforeRendezvous,
    LaunchFinished,
    Stopping,
    WorkerExitSeen,
    WorkersStarted,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from plaunch.agent import Notification
    from plaunch.plugin import PluginContext

    Frame = tuple[str, str]  # function and file
    StackReader = Callable[[int], Sequence[Frame]]

logger = logging.getLogger("plaunch")

PAUSE = 0.25  # seconds between two samples, each of which takes 10 ms of CPU time
_SAMPLE_TIMEOUT = 1.0  # seconds
_LAST_WAIT = 1.5  # seconds for the threads to end with the launch, which waits for 2 s
_MAX_SECONDS = 120.0  # seconds of imports that are watched
_MAX_FAILURES = 40  # if so many samples fail before one succeeds, sampling is impossible here
_MAX_ROUNDS = 10
SLOW_IMPORT = 1.0  # seconds; an import that takes longer is slow
ROUNDS = 3  # rounds in which a module must be slow before there is advice
_MIN_IDLE_SAMPLES = 2  # samples in a row without an import, after which the imports are done
_FOLDERS = ("/site-packages/", "/dist-packages/")


class ImportWatch:
    """Samples the first worker of this node after each restart, until its imports are done.

    The launch creates it before the first restart, and calls it with this and all further
    notifications. Each round has its own thread, which stops at the end of its round after the
    current sample and discards it, because the process id may already belong to another process.
    Only the end of the launch waits for these threads; then the advice is logged.

    It does nothing if its advice is of no use, and in a process that forks workers: they would
    inherit locks of its threads.

    If it cannot sample, it logs why at level DEBUG only: py-spy may not be installed, the system
    may not permit it, and workers may not be Python programs.

    Args:
        context: the launch.
        read: returns the stack of the main thread of a process; by default `read_stack`.
        pause: seconds between two samples.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        context: PluginContext,
        read: StackReader | None = None,
        *,
        pause: float = PAUSE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_useful = logger.isEnabledFor(logging.INFO) and may_preload(context.settings)
        self._read = read_stack if read is None else read
        self._pause = pause
        self._clock = clock
        self._rounds: list[_ImportSampler] = []
        self._local_rank = 0

    def __call__(self, notification: Notification) -> None:
        """Start sampling when workers are started; stop when one ends or all are stopped."""
        if isinstance(notification, WorkersStarted):
            self._end()
            worker = next(iter(notification.group.workers), None)
            if self._is_useful and worker is not None and worker.pid is not None:
                self._local_rank = worker.local_rank
                self._begin(worker.pid)
        elif isinstance(notification, (WorkerExitSeen, Stopping, BeforeRendezvous)):
            self._end()
        elif isinstance(notification, LaunchFinished):
            self._finish()

    def _finish(self) -> None:
        self._end()
        until = time.monotonic() + _LAST_WAIT
        for item in self._rounds:
            item.thread.join(max(until - time.monotonic(), 0.0))
        if advice := advise(self._imports(), self._local_rank):
            logger.info("%s", advice, extra={"is_last": True})

    def _begin(self, pid: int) -> None:
        is_useless = any(item.is_impossible for item in self._rounds) or is_enough(self._imports())
        if is_useless or len(self._rounds) == _MAX_ROUNDS:
            return
        watched = _ImportSampler(pid, self._read, self._pause, self._clock)
        self._rounds.append(watched)
        try:
            watched.thread.start()
        except RuntimeError as error:  # no more threads, or the interpreter is ending
            self._rounds.pop()
            _log_problem(error)

    def _end(self) -> None:
        if self._rounds:
            self._rounds[-1].over.set()

    def _imports(self) -> list[RoundImports]:
        return [item.imports for item in self._rounds]


class _ImportSampler:
    """A thread that samples one worker in one round."""

    def __init__(
        self, pid: int, read: StackReader, pause: float, clock: Callable[[], float]
    ) -> None:
        self.imports = RoundImports()
        self.is_impossible = False  # whether no sample can succeed
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run, name="plaunch-imports", daemon=True)
        self._pid = pid
        self._read = read
        self._pause = pause
        self._clock = clock

    def _run(self) -> None:
        until = self._clock() + _MAX_SECONDS
        problem: Exception | None = None  # why there is no stack so far
        failures = 0
        has_read = False
        # The first pause lets the interpreter start.
        while not self.over.wait(self._pause) and self._clock() < until:
            began = self._clock()
            try:
                stack = self._read(self._pid)
            except FileNotFoundError as error:
                self.is_impossible, problem = True, error
                break
            except OSError as error:
                if has_read:
                    continue  # a changing stack cannot always be read
                problem = error
                failures += 1
                if failures == _MAX_FAILURES:
                    self.is_impossible = True
                    break
                continue
            has_read, problem = True, None
            if self.over.is_set():
                break
            self.imports.note(stack, began, self._clock())
            if self.imports.is_over:
                break
        if problem is not None:
            _log_problem(problem)


def may_preload(settings: Mapping[str, object]) -> bool:
    """Whether the settings of a launch leave out `--preload`, and workers could use it."""
    options = settings.get("options")
    is_used = isinstance(options, dict) and bool(options.get("preload"))
    return settings.get("start_method") != "fork" and not is_used


def read_stack(pid: int) -> list[Frame]:
    """Read the stack of a process's main thread, outermost frame first, without pausing it.

    Raises:
        FileNotFoundError: py-spy is not installed.
        OSError: the process could not be read; the message says why.
    """
    from plaunch_hang.stacks.py_spy import find_py_spy  # long-running workers only
    from plaunch_hang.stacks.taking import own_stacks

    find_py_spy()
    stacks = own_stacks({0: pid}, timeout=_SAMPLE_TIMEOUT)[0]
    if stacks.main is None:
        raise OSError(stacks.reason)
    return [(frame.function, frame.file) for frame in reversed(stacks.main.frames)]


def _log_problem(error: Exception) -> None:
    logger.debug("the imports of workers cannot be sampled: %s", error)


def is_importing(stack: Iterable[Frame]) -> bool:
    """Whether the stack is inside an import."""
    return any(map(_is_import, stack))


def find_module(stack: Iterable[Frame]) -> str:
    """Return the full name of the outermost installed module being imported; empty if none is.

    The user's own modules and those of Python are skipped: if `mymodel` imports torch, the result
    is `torch`. Submodules are named in full, such as `sklearn.svm`, because importing `sklearn`
    would not import them.
    """
    is_within = False
    for frame in stack:
        is_within = is_within or _is_import(frame)
        if is_within and frame[0] == "<module>" and (name := name_module(frame[1])):
            return name
    return ""


def name_module(file: str) -> str:
    """The name of the installed module in `file`; empty if the file is not in site-packages."""
    for folder in _FOLDERS:
        _, found, path = file.rpartition(folder)
        stem, _, kind = path.rpartition(".")
        if found and kind in ("py", "pyc"):
            parts = stem.removesuffix("/__init__").split("/")
            if all(map(str.isidentifier, parts)):
                return ".".join(parts)
    return ""


class RoundImports:
    """The imports of one worker in one round, from samples of its stack.

    Seconds are measured between samples, so they are never more than the import took. Only imports
    that a later sample shows to be done are counted, not one that fails or never ends.
    """

    def __init__(self) -> None:
        self.seconds: Mapping[str, float] = {}  # by module; replaced, never changed
        self._module = ""
        self._since = self._until = 0.0
        self._idle_samples = 0

    @property
    def is_over(self) -> bool:
        """Whether the worker has finished its imports."""
        return self._idle_samples >= _MIN_IDLE_SAMPLES

    @property
    def slow(self) -> dict[str, float]:
        """The seconds of slow imports, by module."""
        return {
            module: seconds for module, seconds in self.seconds.items() if seconds > SLOW_IMPORT
        }

    def note(self, stack: Sequence[Frame], began: float, ended: float) -> None:
        """Add the next sample.

        Args:
            stack: the stack; empty while the interpreter starts.
            began: when the sample began, in seconds on any clock.
            ended: when it ended.
        """
        if not stack:
            return
        self._idle_samples = 0 if is_importing(stack) else self._idle_samples + 1
        module = find_module(stack)
        if module == self._module:
            self._until = began
            return
        took = self._until - self._since
        if self._module and took > self.seconds.get(self._module, 0.0):
            self.seconds = {**self.seconds, self._module: took}
        self._module = module
        self._since = self._until = ended


def count_rounds(rounds: Iterable[RoundImports]) -> dict[str, list[float]]:
    """The seconds of each slow module, one number for each round in which it was slow."""
    found: dict[str, list[float]] = {}
    for imports in rounds:
        for module, seconds in imports.slow.items():
            found.setdefault(module, []).append(seconds)
    return found


def is_enough(rounds: Iterable[RoundImports]) -> bool:
    """Whether some module was slow in enough rounds for advice."""
    return any(len(seconds) >= ROUNDS for seconds in count_rounds(rounds).values())


def advise(rounds: Iterable[RoundImports], local_rank: int) -> str:
    """Say in one line what `--preload` would have saved; empty if no module was slow often enough.

    `local_rank` is the worker that was sampled.
    """
    found = {
        module: sum(seconds[:ROUNDS])
        for module, seconds in count_rounds(rounds).items()
        if len(seconds) >= ROUNDS
    }
    if not found:
        return ""
    modules = sorted(found, key=lambda module: -found[module])
    names = " and ".join([", ".join(modules[:-1]), modules[-1]] if modules[1:] else modules)
    least = math.floor(10 * sum(found.values())) / 10
    option = f"--preload={','.join(modules)}"
    return (
        f"in each of {ROUNDS} restarts, local rank {local_rank} imported {names} again, for at "
        f"least {least:g} s in all; {option} would have saved that, if it is possible here "
        f"(check with plaunch --doctor {option})"
    )


def _is_import(frame: Frame) -> bool:
    name, file = frame
    return name == "_find_and_load" and file.startswith("<frozen importlib")
