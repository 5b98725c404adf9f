"""Hosts the store of a job in a process of its own, and connects to it. Nothing here needs torch.

The store itself is the library `plaunch_job_store`; docs/store.md describes it.
"""

from __future__ import annotations

import copy
import logging
import os
import resource
import threading
import time
from typing import TYPE_CHECKING, Any

from plaunch.errors import ExitCode, PlaunchError, RendezvousConnectionError, RendezvousError
from plaunch.process import without_secrets
from plaunch_job_store.client import StoreClient, StoreSilentError
from plaunch_job_store.host import OTHER_DESCRIPTORS, StoreProcess
from plaunch_job_store.identity import IDENTITY, JOB_OF_HOST, make_identity
from plaunch_job_store.reports import describe_report
from plaunch_job_store.store import JobStore

from plaunch_rendezvous_c10d.endpoint import HostJobCheck, StoreEndpoint
from plaunch_rendezvous_c10d.hosting import own_address

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from plaunch.rendezvous import Store
    from plaunch_job_store.authentication import Authenticator
    from plaunch_job_store.host import ServerDeath
    from plaunch_job_store.reports import ServerReport

_log = logging.getLogger("plaunch")

_HOST = "this node"


class JobStoreConnector:
    """Connects to the store of a job; all connections of this node share one. Thread-safe.

    Threads that want the connection at the same time share one attempt, also if it fails: while the
    store cannot be reached, an attempt takes seconds.

    Args:
        endpoint: the endpoint of the store.
        authenticator: proves that this node knows the job's token.
        read_timeout: the limit of one operation, in seconds.
        run_id: the id of this job, for a warning if the host's job is another one.
        check: called before each attempt; raises an error if there is no use in trying.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        endpoint: StoreEndpoint,
        authenticator: Authenticator,
        read_timeout: float,
        run_id: str = "",
        check: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoint = endpoint
        self._clock = clock
        self._failure: tuple[float, PlaunchError] | None = None  # when the last attempt failed
        self._authenticator = authenticator
        self._read_timeout = read_timeout
        self._host_job = HostJobCheck(endpoint, run_id)
        self._check = check
        self._lock = threading.Lock()
        self._client: StoreClient | None = None
        self._torch_store: Any = None  # torch does not keep the Python object alive
        self._is_closed = False
        self._listeners: list[Callable[[], None]] = []

    def connect(self) -> JobStore:
        """Return a store over the shared connection; open that if it is broken.

        It takes about `ConnectBounds.timeout` seconds at most.

        Raises:
            RendezvousConnectionError: see `StoreEndpoint.dial`.
            StoreRefusedError: the server refuses this node, or is another program.
        """
        store = JobStore(self.client())
        self._host_job.run(store)
        return store

    def client(self) -> StoreClient:
        """Return the shared connection; errors as in `connect`."""
        began = self._clock()
        with self._lock:
            client = self._client
            if client is not None and not client.is_broken:
                return client
            self._check()
            self._share_failure(began)
            try:
                client = self._open()
            except PlaunchError as error:
                self._failure = self._clock(), error
                raise
            self.endpoint.note_connected()
            self._client, self._failure = client, None
        if self._is_closed:
            client.close()
        return client

    def _share_failure(self, began: float) -> None:
        """Raise the error of an attempt that has failed since a call `began`, and just now."""
        if self._failure is None:
            return
        failed_at, error = self._failure
        if failed_at >= began and self._clock() - failed_at < self.endpoint.bounds.timeout:
            raise copy.copy(error) from error

    def _open(self) -> StoreClient:
        try:
            return StoreClient(
                self.endpoint.dial,
                self._authenticator,
                self.endpoint.name,
                self._read_timeout,
                on_loss=self._notify,
                connect_timeout=self.endpoint.bounds.timeout,
            )
        except StoreSilentError as error:
            self.endpoint.refuse_other_program(error)
            raise

    def has_lost_data(self) -> bool:
        """Whether the server is the successor of one whose data is lost."""
        client = self._client
        return client is not None and client.incarnation > 1

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` when a node has lost the store; see `StoreAccess.subscribe`."""
        self._listeners.append(listener)

    def open_store(self, prefix: str) -> Store:
        """Open torch's store under a prefix, for programs; imports torch."""
        from torch.distributed import PrefixStore  # rare

        from plaunch_rendezvous_c10d.torch_adapter import create_torch_store

        with self._lock:
            if self._torch_store is None:
                self._torch_store = create_torch_store(self.client, self._read_timeout)
        store: Store = PrefixStore(prefix, self._torch_store)
        return store

    def close(self) -> None:
        """Say goodbye to the server."""
        self._is_closed = True
        client = self._client
        if client is not None:
            client.close()

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()


class StoreHostLostError(RendezvousError):
    """The process of the store that this node hosts has ended too often."""

    exit_code = ExitCode.CONTROL_PLANE_LOST


class HostedJobStore:
    """The store of a job in a process of its own, until `close`.

    Args:
        listener: the listening socket to serve; it belongs to this object from now on.
        token: the job's token, if it has one.
        authenticator: proves that this node knows it.
        run_id: the id of the job.
        read_timeout: the limit of one operation of this node, in seconds.
        max_nodes: how many nodes will connect.

    Raises:
        RendezvousConnectionError: the process cannot be started.
    """

    def __init__(
        self,
        listener: socket.socket,
        token: bytes | None,
        authenticator: Authenticator,
        run_id: str,
        read_timeout: float,
        max_nodes: int = 1,
    ) -> None:
        self.port: int = listener.getsockname()[1]
        address = own_address(listener)
        self.identity = make_identity()
        _warn_of_few_descriptors(2 * max_nodes + OTHER_DESCRIPTORS)
        values = {IDENTITY: self.identity.encode(), JOB_OF_HOST: run_id.encode()}
        try:
            self._process = StoreProcess(
                listener,
                token,
                run_id,
                environ=without_secrets(os.environ),
                values=values,
                on_report=_log_report,
                on_death=self._log_death,
            )
        except OSError as error:
            raise RendezvousConnectionError(
                f"the process of the rendezvous store cannot be started: {error.strerror}"
            ) from error
        self.connector = JobStoreConnector(
            StoreEndpoint(address, self.port), authenticator, read_timeout, check=self._check
        )

    def has_guests(self) -> bool:
        """Whether other processes are connected to it."""
        try:
            return self.connector.connect().count_sessions() > 1
        except RendezvousError:
            return False  # no other process is connected to a store that has ended

    def _check(self) -> None:
        """Raise an error if the process has ended, and is not replaced any more."""
        death = self._process.final_death
        if death is not None:
            raise StoreHostLostError(f"{death.describe(_HOST)}. Start the job again")

    def _log_death(self, death: ServerDeath) -> None:
        if death.is_final:
            _log.error("%s", death.describe(_HOST))
        else:
            _log.warning("%s", death.describe(_HOST))

    def close(self) -> None:
        """Stop the server; waiting clients get an error. May be called twice."""
        self.connector.close()
        self._process.close()


def _log_report(report: ServerReport) -> None:
    _log.warning("%s", describe_report(report))


def _warn_of_few_descriptors(needed: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if needed > most:
        _log.warning(
            "this node hosts the store of the job, whose process may have %d descriptors "
            "(ulimit -Hn), but so many nodes may need %d: nodes that come too late will be "
            "rejected",
            most,
            needed,
        )
