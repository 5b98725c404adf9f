"""Receives the return values of function workers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from plaunch.process import WorkerResults

from plaunch_multiprocessing.results import ResultPipe
from plaunch_multiprocessing.siblings import SiblingGate

if TYPE_CHECKING:
    from plaunch.process import ExitWatch

_RECEIVE_TIME = 0.05  # seconds that one `receive` may spend on large values


class ReturnValues(WorkerResults):
    """The pipes of all workers, their values, and the gate at which they wait for each other."""

    def __init__(self) -> None:
        self.gate: SiblingGate | None = None
        self._nprocs = 0
        self._watch: ExitWatch | None = None
        self._pipes: dict[int, ResultPipe] = {}
        self._pending: dict[int, ResultPipe] = {}  # of running workers, with an incomplete value
        self._values: dict[int, Any] = {}
        self._problems: dict[int, str] = {}  # by local rank; an empty text for a valid value

    def begin(self, nprocs: int, watch: ExitWatch) -> None:
        """Prepare for a start of `nprocs` workers; received data wakes the watch."""
        self._nprocs, self._watch = nprocs, watch
        if nprocs > 1:
            self.gate = SiblingGate()

    def open_pipe(self, local_rank: int) -> ResultPipe:
        """Open the pipe for a worker that is about to be started."""
        pipe = self._pipes[local_rank] = ResultPipe()
        return pipe

    def expect(self, local_rank: int) -> None:
        """Begin to receive from a worker that has been started."""
        pipe = self._pending[local_rank] = self._pipes[local_rank]
        if self._watch is not None:
            self._watch.add_fd(pipe.fd)

    def own_fds(self) -> list[int]:
        """The launcher's ends, which a forked worker must close."""
        fds = [pipe.fd for pipe in self._pipes.values()]
        return fds if self.gate is None else [*fds, self.gate.fd]

    def receive(self) -> None:
        """Read the available data of all workers."""
        deadline = time.monotonic() + _RECEIVE_TIME
        for rank, pipe in list(self._pending.items()):
            pipe.receive(deadline)
            if pipe.is_over:
                self._stop_receiving(rank)
                # A value that cannot be unpickled is a failure: do not make the others wait.
                if pipe.is_complete and self._take_value(rank):
                    self._open_gate()
        if len(self._pipes) == self._nprocs and not self._pending:
            self._open_gate()

    def take(self, local_rank: int, exitcode: int) -> str:
        """Read the rest of a worker that has ended; the problem if it ended with 0, or empty."""
        self._pipes[local_rank].receive_rest()
        self._stop_receiving(local_rank)
        # Workers end when the gate is open or they fail; in both cases the others may end too.
        self._open_gate()
        return self._take_value(local_rank) if exitcode == 0 else ""

    def has_failed(self, local_rank: int) -> bool:
        """Whether a worker that still runs has sent an invalid value."""
        return bool(self._problems.get(local_rank))

    def has_returned(self, local_rank: int) -> bool:
        """Whether a worker that still runs has sent a valid value."""
        return self._problems.get(local_rank) == ""

    def values(self, nprocs: int) -> dict[int, Any]:
        """The values by local rank."""
        return {rank: self._values[rank] for rank in range(nprocs)}

    def close(self) -> None:
        """Close all pipes."""
        for rank in list(self._pending):
            self._stop_receiving(rank)
        for pipe in self._pipes.values():
            pipe.close()
        if self.gate is not None:
            self.gate.close()

    def _open_gate(self) -> None:
        """Let the workers end that have returned and wait for the others."""
        if self.gate is not None:
            self.gate.open()

    def _stop_receiving(self, local_rank: int) -> None:
        pipe = self._pending.pop(local_rank, None)
        if pipe is not None and self._watch is not None:
            self._watch.remove_fd(pipe.fd)

    def _take_value(self, local_rank: int) -> str:
        """Store a worker's return value; the problem if there is no valid one, or empty."""
        if local_rank not in self._problems:
            self._problems[local_rank] = self._unpickle(local_rank)
        return self._problems[local_rank]

    def _unpickle(self, local_rank: int) -> str:
        pipe = self._pipes[local_rank]
        if not pipe.is_complete:
            return (
                "the worker ended with exit code 0 but without a return value, as after os._exit, "
                "which a library may call"
            )
        try:
            self._values[local_rank] = pipe.take_value()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's class may raise anything
            return (
                "the worker's return value cannot be unpickled in the launcher: "
                f"{type(error).__name__}: {error}"
            )
        return ""
