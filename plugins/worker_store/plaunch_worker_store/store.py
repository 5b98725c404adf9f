"""The workers' store of one round, driven by the agent's loop."""

from __future__ import annotations

import logging
import os
import select
import signal
import time
from typing import TYPE_CHECKING

from plaunch.errors import WorkerStoreError, WorkerStoreHostError
from plaunch.values import Value, plain_dataclass

from plaunch_worker_store.listening import listen, own_address

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Collection

    from plaunch.agent import StoreRound
    from plaunch.process import Popen

    from plaunch_worker_store.connection_filter import ConnectionFilter
    from plaunch_worker_store.hosting import Interpreter, StoreHost
    from plaunch_worker_store.loading import TorchWatch

_log = logging.getLogger("plaunch")

_ADVICE = (
    "Give PYTHON_EXEC an interpreter that has torch, or let the worker of rank 0 host the store "
    "(--worker-store=rank0)"
)
_FIRST_CHECK = 0.1  # seconds after the start of workers, when trivial jobs are over
_GUESTS_INTERVAL = 0.2  # seconds between two checks for connected clients
_GUESTS_WARN_AFTER = 1.0  # seconds after which the wait for them is logged


@plain_dataclass
class StoreBounds(Value):
    """The bounds of a store, in seconds; tests use shorter ones.

    Args:
        search_interval: the time between two searches for a worker that has loaded torch.
        torch_wait: the time for a worker to load it, after a client of torch's store has connected.
        start_timeout: the time for the store host to load torch and start to serve.
    """

    search_interval: float = 0.5
    torch_wait: float = 60.0
    start_timeout: int = 150


_BOUNDS = StoreBounds()


def open_store(store_round: StoreRound) -> TorchStore:
    """Listen for the workers of a round, before they are started.

    Raises:
        WorkerStoreError: another program listens there, or this user may not.
    """
    address, port = store_round.address, store_round.port
    listener = listen(address, port, nodes=store_round.nodes)

    def find() -> Interpreter:
        from plaunch_worker_store.hosting import find_interpreter  # if needed

        return find_interpreter(store_round.entrypoint, store_round.environ)

    name = f"the workers' store at {address}:{port}"
    return TorchStore(listener, name, find, store_round.start)


class TorchStore:
    """Listens for the workers of a round, and starts a store host once it is needed.

    It is needed when a worker has loaded torch, or when a client connects. `tend` takes as long as
    starting a process, and `close` as long as a killed process takes to exit.

    Args:
        listener: the socket at which the workers connect to their store.
        name: the name of the store, for messages.
        find_interpreter: returns the interpreter of the store host; called when one is needed.
        start: starts a process; see `plaunch.agent.StoreRound`.
        bounds: the bounds of waits.
        clock: a monotonic clock, in seconds.
        sleep: sleeps for some seconds.
    """

    def __init__(
        self,
        listener: socket.socket,
        name: str,
        find_interpreter: Callable[[], Interpreter],
        start: Callable[..., Popen],
        *,
        bounds: StoreBounds = _BOUNDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._listener: socket.socket | None = listener  # None once only the host has it
        self._address, self._port = own_address(listener), listener.getsockname()[1]
        self._name = name
        self._find_interpreter = find_interpreter
        self._start_process = start
        self._bounds = bounds
        self._clock = clock
        self._sleep = sleep
        self._interpreter: Interpreter | None = None
        self._workers: tuple[int, ...] = ()
        self._watched_since: float | None = None
        self._watch: TorchWatch | None = None
        self._host: StoreHost | None = None
        self._filter: ConnectionFilter | None = None
        self._is_workers_interpreter = False  # whether it was found in a worker
        self._refused_at: float | None = None  # when the first unserved client connected
        self._searched_at = 0.0

    # --- for the loop -----------------------------------------------------------------------------

    def watch(self, workers: Collection[int]) -> None:
        """Set the workers of this node, by their process ids, the one of rank 0 first."""
        self._workers = tuple(workers)
        self._watched_since = self._clock()

    def fds(self) -> list[int]:
        """Descriptors that are readable when `tend` has something to do."""
        if self._host is not None:
            return self._host.fds()
        if self._filter is not None:
            return self._filter.fds()
        return [] if self._listener is None else [self._listener.fileno()]

    def due(self) -> float | None:
        """Seconds until `tend` must be called in any case; None if it need not be."""
        if self._host is not None:
            return self._host.due()
        if self._filter is not None:
            return self._filter.due()
        if self._watch is not None:
            return self._watch.due()
        if self._watched_since is None:
            return None
        return max(self._watched_since + _FIRST_CHECK - self._clock(), 0.0)

    def tend(self) -> WorkerStoreError | None:
        """Do what is due: start the store host, or detect that it has exited.

        Returns:
            The error for the end of the round, if the store is lost. It is then closed.
        """
        try:
            if self._host is not None:
                self._check_host(self._host)
            elif self._filter is not None:
                self._check_clients(self._filter)
            elif self._listener is not None and self._is_wanted(self._listener):
                self._start(is_lean=True)
        except WorkerStoreError as error:
            self.close()
            return error
        return None

    @property
    def is_served(self) -> bool:
        """Whether a store host is serving."""
        return self._host is not None and self._host.is_serving

    def close(self) -> None:
        """Close the store, and stop its host."""
        if self._filter is not None:
            self._filter.close()
        if self._host is not None:
            self._host.close()
        self._close_listener()
        self._watch = self._host = self._filter = self._watched_since = None

    # --- guests -----------------------------------------------------------------------------------

    def wait_for_guests(self, patience: float) -> None:
        """Wait until no process of another node is connected, at most `patience` seconds.

        Called when this node's own workers have ended and the others' may be running. May be called
        on another thread than the other methods, and abandoned there.
        """
        began = self._clock()
        has_warned = False
        while self._has_guests():
            elapsed = self._clock() - began
            if elapsed >= patience:
                _log.warning(
                    "workers of other nodes are still connected to %s after %g s "
                    "(--exit-barrier-timeout); the store is closed",
                    self._name,
                    elapsed,
                )
                return
            if elapsed >= _GUESTS_WARN_AFTER and not has_warned:
                has_warned = True
                _log.warning(
                    "this node has finished and hosts %s; it stays until no workers of other "
                    "nodes are connected to it",
                    self._name,
                )
            self._sleep(_GUESTS_INTERVAL)

    def _has_guests(self) -> bool:
        """Whether clients are connected, apart from the store host, which is one itself.

        This includes clients that connect while the host is loading torch.
        """
        if self._host is None:
            return False
        from plaunch_network import count_connections  # several nodes only

        return not self.is_served or count_connections(self._port) > 1

    # --- steps ------------------------------------------------------------------------------------

    def _is_wanted(self, listener: socket.socket) -> bool:
        if self._has_loaded_torch():
            return True
        poller = select.poll()
        poller.register(listener.fileno(), select.POLLIN)
        return bool(poller.poll(0))

    def _has_loaded_torch(self) -> bool:
        """Whether the first worker has loaded torch, if a check is due."""
        if self.due() != 0.0 or self._watched_since is None:
            return False
        if self._watch is None:
            from plaunch_worker_store.loading import TorchWatch  # not in an empty job

            since = self._watched_since
            self._watch = TorchWatch(self._workers[0], began=since, clock=self._clock)
        return self._watch.check()

    def _start(self, *, is_lean: bool) -> None:
        from plaunch_worker_store.hosting import StoreHost  # once it is needed

        if self._listener is None:
            raise RuntimeError("a store host is started for a store that is not open")
        if self._interpreter is None:
            self._interpreter = self._find_interpreter()
        try:
            self._host = StoreHost(
                self._interpreter,
                self._start_process,
                self._listener,
                self._address,
                is_lean=is_lean,
                start_timeout=self._bounds.start_timeout,
            )
        except OSError as error:
            raise WorkerStoreHostError(
                f"{self._name} cannot be hosted: {self._interpreter.python!r} cannot be started: "
                f"{error}. {_ADVICE}"
            ) from error
        _log.debug("%s: store host is pid %d", self._name, self._host.pid)

    def _check_host(self, host: StoreHost) -> None:
        exitcode = host.check()
        if exitcode is not None:
            self._handle_exit(host, exitcode)
        elif host.is_serving:
            self._close_listener()
        elif host.wants_port:
            self._close_listener()
            host.bind()

    def _handle_exit(self, host: StoreHost, exitcode: int) -> None:
        from plaunch_worker_store.serving import NO_TORCH  # trouble only

        text = host.describe_end()
        host.close()
        self._host = None
        # Killed, for example by the kernel for lack of memory, it may have had clients.
        if host.is_serving or self._listener is None or exitcode == -signal.SIGKILL:
            raise WorkerStoreError(f"{self._name} was lost: its process has ended ({text})")
        if exitcode == NO_TORCH:
            self._find_torch_elsewhere()
        elif exitcode == -signal.SIGALRM:
            raise WorkerStoreError(
                f"{self._name} cannot be hosted: its process has not served it within "
                f"{self._bounds.start_timeout} s, most of which is for loading torch; check "
                f"whether torch's file system is slow ({text})"
            )
        elif host.is_lean:
            _log.debug("%s: the store host is started again (%s)", self._name, text)
            self._start(is_lean=False)
        else:
            raise WorkerStoreHostError(
                f"{self._name} cannot be hosted: its process has ended ({text})\n{_ADVICE}"
            )

    def _find_torch_elsewhere(self) -> None:
        """Use the interpreter of a worker with torch; without one, wait until a client needs it."""
        if self._interpreter is None or self._listener is None:
            raise RuntimeError("a store that is not open has lost its host")
        if not self._is_workers_interpreter and self._use_workers_interpreter(self._interpreter):
            return
        _log.info("%s has no torch to host %s", self._interpreter.python, self._name)
        from plaunch_worker_store.connection_filter import ConnectionFilter

        self._filter = ConnectionFilter(self._listener, clock=self._clock)

    def _use_workers_interpreter(self, own: Interpreter) -> bool:
        """Start a host with the interpreter of a worker that has loaded torch, if there is one."""
        from plaunch_worker_store.hosting import Interpreter  # trouble only
        from plaunch_worker_store.loading import find_torch

        self._searched_at = self._clock()
        found = find_torch(self._workers)
        if found is None:
            return False
        python, folder = found
        paths = [folder, *filter(None, [own.env.get("PYTHONPATH")])]
        self._interpreter = Interpreter(python, {**own.env, "PYTHONPATH": os.pathsep.join(paths)})
        self._is_workers_interpreter = True
        self._start(is_lean=True)
        return True

    def _check_clients(self, connection_filter: ConnectionFilter) -> None:
        client = connection_filter.check()
        if not client or self._interpreter is None:
            return
        now = self._clock()
        if self._refused_at is None:
            self._refused_at = now
        # Workers of this node may be slower, or start in a program that is not an interpreter.
        is_due = now - self._searched_at >= self._bounds.search_interval
        if (
            is_due
            and not self._is_workers_interpreter
            and self._use_workers_interpreter(self._interpreter)
        ):
            connection_filter.close()
            self._filter = None
        elif self._is_workers_interpreter or now - self._refused_at >= self._bounds.torch_wait:
            raise WorkerStoreHostError(
                f"{self._name} cannot be hosted: {self._interpreter.python!r} has no torch, but a "
                f"worker that uses torch has connected from {client}. {_ADVICE}"
            )

    def _close_listener(self) -> None:
        """Close the launcher's own copy of the socket."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
