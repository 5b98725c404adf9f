"""The workers' store of one round, for the agent's loop: it asks, and nothing here waits."""

from __future__ import annotations

import logging
import os
import select
import signal
import time
from typing import TYPE_CHECKING

from plaunch.errors import WorkerStoreError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Collection

    from plaunch.agent.worker_store.hosting import Interpreter, StoreHost
    from plaunch.agent.worker_store.loading import TorchWatch
    from plaunch.agent.worker_store.strangers import Doorkeeper
    from plaunch.process.reaping.reaper import Reaper

_log = logging.getLogger("plaunch")

_ADVICE = (
    "Give PYTHON_EXEC an interpreter that has torch, or let the worker of rank 0 host the store "
    "(--worker-store=rank0)"
)
_FIRST_LOOK = 0.1  # seconds after the start of workers, when an empty job is over
_GUESTS_LOOK = 0.2  # seconds between two looks at who is still connected
_GUESTS_SAID = 1.0  # seconds after which the wait for them is said
_ESTABLISHED = "01"


class WorkerStore:
    """Listens for the workers of a round, and has a store host serve them once that is needed.

    It is needed when a worker has loaded torch, or when somebody connects. `fds` and `due` say
    when to call `tend`, which never blocks. `open` begins a round and `close` ends it; both may be
    called again and again.

    Args:
        reaper: the agent's, which is told of store hosts.
        clock: seconds that never go back.
        sleep: waits for so many seconds.
    """

    def __init__(
        self,
        reaper: Reaper,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._reaper = reaper
        self._clock = clock
        self._sleep = sleep
        self._name = ""  # what messages call the store
        self._find_interpreter: Callable[[], Interpreter] | None = None
        self._interpreter: Interpreter | None = None
        self._listener: socket.socket | None = None
        self._port = 0
        self._address = ""
        self._workers: tuple[int, ...] = ()
        self._watched_since: float | None = None
        self._watch: TorchWatch | None = None
        self._host: StoreHost | None = None
        self._doorkeeper: Doorkeeper | None = None
        self._has_looked_elsewhere = False

    def open(
        self, address: str, port: int, *, nodes: int, interpreter: Callable[[], Interpreter]
    ) -> None:
        """Listen for the workers of a round, before they are started.

        Args:
            address: `MASTER_ADDR`.
            port: `MASTER_PORT`.
            nodes: how many nodes the round has.
            interpreter: says what runs the store host, once there must be one.

        Raises:
            WorkerStoreError: another program listens there, or this user may not.
        """
        from plaunch.agent.worker_store.listening import (  # noqa: PLC0415 - the node of rank 0 only
            listen,
            own_address,
        )

        self.close()
        self._listener = listen(address, port, nodes=nodes)
        self._address, self._port = own_address(self._listener), port
        self._name = f"the workers' store at {address}:{port}"
        self._find_interpreter, self._interpreter = interpreter, None
        self._has_looked_elsewhere = False

    def watch(self, workers: Collection[int]) -> None:
        """Know of the workers of this node, by their process ids, the one of rank 0 first."""
        if self._listener is None:
            return
        self._workers = tuple(workers)
        self._watched_since = self._clock()

    # --- for the loop -----------------------------------------------------------------------------

    def fds(self) -> list[int]:
        """Descriptors that are readable when `tend` has something to do."""
        if self._host is not None:
            return self._host.fds()
        if self._doorkeeper is not None:
            return self._doorkeeper.fds()
        return [] if self._listener is None else [self._listener.fileno()]

    def due(self) -> float | None:
        """Seconds until `tend` wants to be called whatever happens; None if it does not."""
        if self._host is not None:
            return self._host.due()
        if self._doorkeeper is not None:
            return self._doorkeeper.due()
        if self._watch is not None:
            return self._watch.due()
        if self._watched_since is None:
            return None
        return max(self._watched_since + _FIRST_LOOK - self._clock(), 0.0)

    def tend(self) -> WorkerStoreError | None:
        """Do what is due: start the store host, or notice that it has ended.

        Returns:
            What to end the round for, if the store is lost. It is then closed.
        """
        try:
            if self._host is not None:
                self._tend_host(self._host)
            elif self._doorkeeper is not None:
                self._tend_door(self._doorkeeper)
            elif self._listener is not None and self._is_wanted(self._listener):
                self._start(is_lean=True)
        except WorkerStoreError as error:
            self.close()
            return error
        return None

    @property
    def is_served(self) -> bool:
        """Whether there is a store host that answers."""
        return self._host is not None and self._host.is_serving

    def own_fds(self) -> list[int]:
        """All descriptors that a forked worker must not keep."""
        fds = [] if self._listener is None else [self._listener.fileno()]
        return fds if self._host is None else fds + self._host.own_fds()

    def close(self) -> None:
        """End the store of this round; takes no more than a moment."""
        if self._doorkeeper is not None:
            self._doorkeeper.close()
        if self._host is not None:
            self._host.close()
        self._let_go()
        self._watch = self._host = self._doorkeeper = self._watched_since = None

    # --- guests -----------------------------------------------------------------------------------

    def wait_for_guests(self, patience: float) -> None:
        """Wait until no process of another node is connected, at most `patience` seconds.

        For when this node's own workers have ended, and nobody else says whether the others' have.
        It may be called on another thread than everything else, and abandoned there.
        """
        began = self._clock()
        is_said = False
        while self._has_guests():
            elapsed = self._clock() - began
            if elapsed >= patience:
                _log.warning(
                    "workers of other nodes are still connected to %s after %g s "
                    "(--exit-barrier-timeout); it is not kept any longer",
                    self._name,
                    elapsed,
                )
                return
            if elapsed >= _GUESTS_SAID and not is_said:
                is_said = True
                _log.warning(
                    "this node is done and hosts %s; it stays as long as workers of other nodes "
                    "are connected to it",
                    self._name,
                )
            self._sleep(_GUESTS_LOOK)

    def _has_guests(self) -> bool:
        """Whether clients are connected beside the store host, which is one itself."""
        return self.is_served and _count_connections(self._port) > 1

    # --- steps ------------------------------------------------------------------------------------

    def _is_wanted(self, listener: socket.socket) -> bool:
        if self._has_loaded_torch():
            return True
        poller = select.poll()
        poller.register(listener.fileno(), select.POLLIN)
        return bool(poller.poll(0))

    def _has_loaded_torch(self) -> bool:
        """Whether the first worker was seen to; it is looked at when that is due."""
        if self.due() != 0.0 or self._watched_since is None:
            return False
        if self._watch is None:
            from plaunch.agent.worker_store.loading import (  # noqa: PLC0415 - not in an empty job
                TorchWatch,
            )

            since = self._watched_since
            self._watch = TorchWatch(self._workers[0], began=since, clock=self._clock)
        return self._watch.look()

    def _start(self, *, is_lean: bool) -> None:
        from plaunch.agent.worker_store.hosting import StoreHost  # noqa: PLC0415 - once it is needed

        if self._listener is None or self._find_interpreter is None:
            raise RuntimeError("a store host is started for a store that is not open")
        if self._interpreter is None:
            self._interpreter = self._find_interpreter()
        try:
            self._host = StoreHost(
                self._interpreter,
                self._reaper.helper_words(),
                self._listener,
                self._address,
                is_lean=is_lean,
            )
        except OSError as error:
            raise WorkerStoreError(
                f"{self._name} cannot be hosted: {self._interpreter.python!r} cannot be started: "
                f"{error}. {_ADVICE}"
            ) from error
        self._reaper.add_helper(self._host.pid)
        _log.debug("%s: store host is pid %d", self._name, self._host.pid)

    def _tend_host(self, host: StoreHost) -> None:
        exitcode = host.look()
        if exitcode is not None:
            self._answer_end(host, exitcode)
        elif host.is_serving:
            self._let_go()
        elif host.wants_port:
            self._let_go()
            host.bind()

    def _answer_end(self, host: StoreHost, exitcode: int) -> None:
        from plaunch.agent.worker_store.serving import NO_TORCH  # noqa: PLC0415 - trouble only

        text = host.describe_end()
        host.close()
        self._host = None
        # Killed by somebody, or by the kernel for want of memory, it may have had clients.
        if host.is_serving or self._listener is None or exitcode == -signal.SIGKILL:
            raise WorkerStoreError(f"{self._name} was lost: its process has ended ({text})")
        if exitcode == NO_TORCH:
            self._do_without_torch()
        elif host.is_lean:
            _log.debug("%s: the store host is started again (%s)", self._name, text)
            self._start(is_lean=False)
        else:
            raise WorkerStoreError(
                f"{self._name} cannot be hosted: its process has ended ({text})\n{_ADVICE}"
            )

    def _do_without_torch(self) -> None:
        """Take another interpreter that has torch; without one, see whether it is missed at all."""
        if self._interpreter is None or self._listener is None:
            raise RuntimeError("a store that is not open has lost its host")
        from plaunch.agent.worker_store.hosting import Interpreter  # noqa: PLC0415 - trouble only

        elsewhere = self._find_torch()
        if elsewhere is not None:
            python, folder = elsewhere
            env = self._interpreter.env
            paths = [folder, *filter(None, [env.get("PYTHONPATH")])]
            self._interpreter = Interpreter(python, {**env, "PYTHONPATH": os.pathsep.join(paths)})
            self._start(is_lean=True)
            return
        _log.info("%s has no torch to host %s", self._interpreter.python, self._name)
        from plaunch.agent.worker_store.strangers import Doorkeeper  # noqa: PLC0415 - as above

        self._doorkeeper = Doorkeeper(self._listener, clock=self._clock)

    def _find_torch(self) -> tuple[str, str] | None:
        """The interpreter of a worker that has loaded torch, and where that is; once in a round."""
        if self._has_looked_elsewhere:
            return None
        self._has_looked_elsewhere = True
        from plaunch.agent.worker_store.loading import find_torch  # noqa: PLC0415 - as above

        return find_torch(self._workers)

    def _tend_door(self, doorkeeper: Doorkeeper) -> None:
        guest = doorkeeper.look()
        if guest and self._interpreter is not None:
            raise WorkerStoreError(
                f"{self._name} cannot be hosted: {self._interpreter.python!r} has no torch, and a "
                f"worker of torch's has connected from {guest}. {_ADVICE}"
            )

    def _let_go(self) -> None:
        """Close the launcher's own copy of the socket."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None


def _count_connections(port: int) -> int:
    """How many connections to a port of this machine there are; 0 where there is no /proc."""
    count = 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as lines:
                next(lines, None)
                for line in lines:
                    fields = line.split(None, 4)
                    if fields[3] == _ESTABLISHED and int(fields[1].rpartition(":")[2], 16) == port:
                        count += 1
        except OSError:
            continue
    return count
