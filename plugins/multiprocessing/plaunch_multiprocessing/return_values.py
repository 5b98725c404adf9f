"""The return values of function workers, as they arrive."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from plaunch.process import WorkerResults

from plaunch_multiprocessing.results import ResultPipe
from plaunch_multiprocessing.siblings import SiblingGate

if TYPE_CHECKING:
    from plaunch.process import ExitWatch

_BUDGET = 0.05  # seconds that one look may spend on large values that are coming


class ReturnValues(WorkerResults):
    """The pipes of all workers, their values, and the gate at which they wait for each other."""

    def __init__(self) -> None:
        self.gate: SiblingGate | None = None
        self._nprocs = 0
        self._watch: ExitWatch | None = None
        self._pipes: dict[int, ResultPipe] = {}
        self._coming: dict[int, ResultPipe] = {}
        self._values: dict[int, Any] = {}
        self._problems: dict[int, str] = {}  # with the values that were taken; empty texts

    def begin(self, nprocs: int, watch: ExitWatch) -> None:
        """Get ready for so many workers; the watch is to be woken by what comes."""
        self._nprocs, self._watch = nprocs, watch
        if nprocs > 1:
            self.gate = SiblingGate()

    def open_pipe(self, local_rank: int) -> ResultPipe:
        """The pipe for a worker that is about to be started."""
        pipe = self._pipes[local_rank] = ResultPipe()
        return pipe

    def expect(self, local_rank: int) -> None:
        """The worker was started, and may send."""
        pipe = self._coming[local_rank] = self._pipes[local_rank]
        if self._watch is not None:
            self._watch.add_fd(pipe.fd)

    def own_fds(self) -> list[int]:
        """The launcher's ends, which a forked worker must not keep."""
        fds = [pipe.fd for pipe in self._pipes.values()]
        return fds if self.gate is None else [*fds, self.gate.fd]

    def receive(self) -> None:
        """Take what has come."""
        deadline = time.monotonic() + _BUDGET
        for rank, pipe in list(self._coming.items()):
            pipe.receive(deadline)
            if pipe.is_over:
                self._stop_receiving(rank)
                # A value that cannot be had is a failure, for which nobody else is waited for.
                if pipe.is_complete and self._take_value(rank):
                    self._open_gate()
        if len(self._pipes) == self._nprocs and not self._coming:
            self._open_gate()

    def take(self, local_rank: int, exitcode: int) -> str:
        """Take the rest of what a worker has sent; what is wrong if it ended with 0."""
        self._pipes[local_rank].receive_rest()
        self._stop_receiving(local_rank)
        # Whoever ends has not waited, or not in vain: there is a failure, or nobody to wait for.
        self._open_gate()
        return self._take_value(local_rank) if exitcode == 0 else ""

    def has_failed(self, local_rank: int) -> bool:
        """Whether a worker that still runs has sent something that is no valid value."""
        return bool(self._problems.get(local_rank))

    def has_returned(self, local_rank: int) -> bool:
        """Whether the value of a worker that still runs is here."""
        return self._problems.get(local_rank) == ""

    def values(self, nprocs: int) -> dict[int, Any]:
        """The values by local rank."""
        return {rank: self._values[rank] for rank in range(nprocs)}

    def close(self) -> None:
        """Close all pipes."""
        for rank in list(self._coming):
            self._stop_receiving(rank)
        for pipe in self._pipes.values():
            pipe.close()
        if self.gate is not None:
            self.gate.close()

    def _open_gate(self) -> None:
        """Let workers end that have returned and wait for the others."""
        if self.gate is not None:
            self.gate.open()

    def _stop_receiving(self, local_rank: int) -> None:
        pipe = self._coming.pop(local_rank, None)
        if pipe is not None and self._watch is not None:
            self._watch.remove_fd(pipe.fd)

    def _take_value(self, local_rank: int) -> str:
        """Keep a worker's return value; say what is wrong with it if it cannot be had."""
        if local_rank not in self._problems:
            self._problems[local_rank] = self._unpickle(local_rank)
        return self._problems[local_rank]

    def _unpickle(self, local_rank: int) -> str:
        pipe = self._pipes[local_rank]
        if not pipe.is_complete:
            return (
                "the worker ended with exit code 0 but without a return value; os._exit, or a "
                "library that calls it, ends a process like this"
            )
        try:
            self._values[local_rank] = pipe.take_value()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's class may raise anything
            return (
                "the worker's return value cannot be unpickled in the launcher: "
                f"{type(error).__name__}: {error}"
            )
        return ""
