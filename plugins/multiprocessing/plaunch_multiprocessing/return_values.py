"""The return values of function workers, and the gate at which workers wait for each other."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import pickle
import select
import signal
import struct
import time
from typing import TYPE_CHECKING, Any

from plaunch.durations import milliseconds
from plaunch.process import DEFAULT_SIGNALS, WorkerResults, parse_signals

if TYPE_CHECKING:
    from plaunch.process import ExitPoller

_HEADER = struct.Struct("!8sQ")
_MAGIC = b"plaunch1"
_CHUNK = 1 << 20
_READ_PAUSE = 0.005  # seconds without data after which `receive` returns
_RECEIVE_TIME = 0.05  # seconds that one `receive` may spend on large values


class ResultPipe:
    """The launcher's end of one worker's pipe, and `child_fd`, the worker's end.

    The worker sends one frame: a header with the length, then the pickled value. So it is known
    whether the value is complete, even if other processes have the pipe open.
    """

    def __init__(self) -> None:
        self.fd, self.child_fd = os.pipe()
        os.set_blocking(self.fd, False)
        self._data = bytearray()
        self._length: int | None = None
        self._is_over = False

    def receive(self, deadline: float) -> None:
        """Read the available data; if a value has begun, continue until `deadline`.

        `deadline` is on the monotonic clock.
        """
        while not self.is_over:
            try:
                chunk = os.read(self.fd, _CHUNK)
            except BlockingIOError:
                if not self._data or time.monotonic() >= deadline:
                    return
                poller = select.poll()
                poller.register(self.fd, select.POLLIN)
                if not poller.poll(milliseconds(_READ_PAUSE)):
                    return
                continue
            if not chunk:
                self._is_over = True
                return
            self._data += chunk
            self._read_header()
            if time.monotonic() >= deadline:
                return

    def receive_rest(self) -> None:
        """Read all that a worker has sent; called after its end."""
        while not self.is_over:
            before = len(self._data)
            self.receive(deadline=0.0)
            if len(self._data) == before:
                return

    @property
    def is_complete(self) -> bool:
        """Whether the whole value has arrived."""
        return self._length is not None and len(self._data) >= self._length

    @property
    def is_over(self) -> bool:
        """Whether no more data can come: the value is complete, or the other end is closed."""
        return self._is_over or self.is_complete

    def take_value(self) -> Any:
        """Unpickle and return the value, which may raise any exception; called once."""
        data, self._data = self._data, bytearray()
        return pickle.loads(memoryview(data)[_HEADER.size :])  # noqa: S301 - from a worker

    def close_child_end(self) -> None:
        """Close the launcher's copy of the worker's end, once the worker has its own."""
        if self.child_fd >= 0:
            os.close(self.child_fd)
            self.child_fd = -1

    def close(self) -> None:
        """Close both ends; may be called more than once."""
        self.close_child_end()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _read_header(self) -> None:
        if self._length is not None or len(self._data) < _HEADER.size:
            return
        magic, length = _HEADER.unpack_from(self._data)
        if magic != _MAGIC:
            self._is_over = True  # not a frame: other code wrote to the worker's descriptor
            return
        self._length = _HEADER.size + length
        if length > _CHUNK:
            # A larger pipe saves time; the user's quota may not allow it.
            with contextlib.suppress(OSError, AttributeError):
                fcntl.fcntl(self.fd, fcntl.F_SETPIPE_SZ, _CHUNK)


def send_result(fd: int, data: bytes) -> None:
    """Send one pickled value, called in the worker; blocks until the launcher has read it."""
    with open(fd, "wb", buffering=0, closefd=False) as pipe:
        for part in (_HEADER.pack(_MAGIC, len(data)), data):
            view = memoryview(part)
            while view:
                view = view[pipe.write(view) :]


class SiblingGate:
    """The launcher's end of a pipe on which workers wait for a byte; `child_fd` is their end.

    The byte is never read, so it releases all workers. Closing the pipe would not be enough: other
    processes may have it open.
    """

    def __init__(self) -> None:
        self._is_open = False
        self.child_fd, self.fd = os.pipe()

    def open(self) -> None:
        """Release all workers, also those that wait later."""
        if not self._is_open and self.fd >= 0:
            self._is_open = True
            os.write(self.fd, b"\0")

    def close(self) -> None:
        """Close both ends; may be called more than once."""
        for fd in (self.child_fd, self.fd):
            if fd >= 0:
                os.close(fd)
        self.child_fd = self.fd = -1


class SiblingWait:
    """Makes a worker that has returned wait until all have, one has failed, or they are stopped.

    As in torchrun: a worker that ends early can break others that still communicate with it, for
    instance in torch's threads. The wait ends with a byte from the launcher, with the launcher's
    end, or with a stop signal. From `begin` on, a stop signal only ends the wait, as the worker
    then ends by itself; after the wait, a further signal has its previous effect.

    Must be created before other code registers atexit callbacks.

    Args:
        fd: the worker's end of the gate's pipe.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._previous: dict[int, Any] = {}
        atexit.register(self._ignore_signals)

    def begin(self) -> None:
        """Handle stop signals; called before the launcher gets the return value."""
        self._signal_read, self._signal_write = os.pipe()
        os.set_blocking(self._signal_write, False)
        for signum in parse_signals(DEFAULT_SIGNALS):
            handler = signal.getsignal(signum)
            if handler not in (signal.SIG_IGN, None):  # None: a handler of C code, left alone
                self._previous[signum] = signal.signal(signum, self._end_wait)

    def wait(self) -> None:
        """Wait; called once."""
        poller = select.poll()
        for fd in (self._fd, self._signal_read):
            poller.register(fd, select.POLLIN)
        was_signalled = self._signal_read in dict(poller.poll())
        for signum, handler in self._previous.items():
            is_default = handler in (signal.SIG_DFL, signal.default_int_handler)
            next_handler = self._restore if is_default and not was_signalled else handler
            signal.signal(signum, next_handler)
        for fd in (self._fd, self._signal_read, self._signal_write):
            os.close(fd)

    def _end_wait(self, signum: int, frame: object) -> None:
        # Must not raise: a second signal may arrive anywhere.
        with contextlib.suppress(BlockingIOError):  # the pipe is full, so the wait ends anyway
            os.write(self._signal_write, b"\0")

    def _restore(self, signum: int, frame: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _ignore_signals(self) -> None:
        # At finalization the interpreter resets Python handlers to the default, which would kill.
        for signum in self._previous:
            if signal.getsignal(signum) == self._restore:
                signal.signal(signum, signal.SIG_IGN)


class ReturnValues(WorkerResults):
    """The pipes of all workers, their values, and the gate at which they wait for each other."""

    def __init__(self) -> None:
        self.gate: SiblingGate | None = None
        self._nprocs = 0
        self._poller: ExitPoller | None = None
        self._pipes: dict[int, ResultPipe] = {}
        self._pending: dict[int, ResultPipe] = {}  # of running workers, with an incomplete value
        self._values: dict[int, Any] = {}
        self._problems: dict[int, str] = {}  # by local rank; an empty text for a valid value

    def begin(self, nprocs: int, poller: ExitPoller) -> None:
        """Prepare for a start of `nprocs` workers; received data wakes the poller."""
        self._nprocs, self._poller = nprocs, poller
        if nprocs > 1:
            self.gate = SiblingGate()

    def open_pipe(self, local_rank: int) -> ResultPipe:
        """Open the pipe for a worker that is about to be started."""
        pipe = self._pipes[local_rank] = ResultPipe()
        return pipe

    def expect(self, local_rank: int) -> None:
        """Begin to receive from a worker that has been started."""
        pipe = self._pending[local_rank] = self._pipes[local_rank]
        if self._poller is not None:
            self._poller.add_fd(pipe.fd)

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
        """Release the workers that have returned and wait for the others."""
        if self.gate is not None:
            self.gate.open()

    def _stop_receiving(self, local_rank: int) -> None:
        pipe = self._pending.pop(local_rank, None)
        if pipe is not None and self._poller is not None:
            self._poller.remove_fd(pipe.fd)

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
