"""Creates a handler from the parameters: the agent's session with etcd, and its address."""

from __future__ import annotations

import copy
import os
import time
from typing import TYPE_CHECKING

from plaunch.durations import Duration, bounded
from plaunch.rendezvous import BackendTraits, backend_traits
from plaunch_membership import DynamicRendezvousHandler, StoreAccess, Timing, check_parameters
from plaunch_network import find_node_address

from plaunch_rendezvous_etcd.client import ETCD_BOUNDS, EtcdBounds, EtcdClient
from plaunch_rendezvous_etcd.leases import JobLease, PresenceLease
from plaunch_rendezvous_etcd.link import CallError
from plaunch_rendezvous_etcd.options import DEFAULT_PORT, OPTIONS, read_options
from plaunch_rendezvous_etcd.protocol import load_protocol
from plaunch_rendezvous_etcd.store import EtcdStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.rendezvous import RendezvousHandler, RendezvousParameters

    from plaunch_rendezvous_etcd.options import EtcdOptions
    from plaunch_rendezvous_etcd.protocol import Protocol

_LEGACY = "etcd"  # torchrun's first backend, which names `join_timeout` `timeout`

_MIN_ANSWER_TIMEOUT = 1.0  # seconds


def _read_store(params: RendezvousParameters) -> None:
    """Refuse what `create_session` refuses."""
    read_options(params, os.environ)
    load_protocol()


@backend_traits(
    BackendTraits(
        needs_endpoint=True,
        default_port=DEFAULT_PORT,
        coordinates_restarts=True,
        check=lambda params: check_parameters(_with_current_names(params), OPTIONS, _read_store),
    )
)
def create_etcd_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Create the handler of `etcd-v2` or `etcd`; it connects to nothing yet.

    Raises:
        UsageError: an option is unknown or invalid.
        PluginLoadError: grpc, protobuf or etcd3 is missing.
    """
    params = _with_current_names(params)
    timing = Timing.from_parameters(params, OPTIONS)  # rejects options before grpc is imported
    store = prepare_backend(params)
    try:
        return DynamicRendezvousHandler(params, store, timing=timing)
    except BaseException:
        store.release()
        raise


def prepare_backend(params: RendezvousParameters) -> StoreAccess:
    """Read the backend's own options, and import grpc.

    It is called on the main thread. Its slowest step is a name server that does not answer.

    Raises:
        UsageError: an option is invalid.
        PluginLoadError: grpc, protobuf or etcd3 is missing.
    """
    session = create_session(params)
    first = session.options.endpoints[0]
    address = find_node_address(
        first.host, first.port, max_nodes=params.max_nodes, local_addr=params.local_addr
    )
    return StoreAccess(
        session.connect,
        address,
        session.options.endpoint,
        release=session.close,
        outlives_job=True,
    )


def create_session(
    params: RendezvousParameters,
    *,
    bounds: EtcdBounds = ETCD_BOUNDS,
    clock: Callable[[], float] = time.monotonic,
) -> EtcdSession:
    """Create the session of one agent, whose times follow from the options; connects to nothing.

    Raises:
        UsageError: an option is invalid.
        PluginLoadError: grpc, protobuf or etcd3 is missing.
    """
    options = read_options(params, os.environ)
    interval = params.get_as_seconds("keep_alive_interval") or 1.0
    attempts = params.get_as_int("keep_alive_max_attempt") or 5
    verdict_ttl = params.get_as_seconds("verdict_ttl", 0.0, Duration(may_be_zero=True)) or 0.0
    return EtcdSession(
        options,
        load_protocol(),
        params.run_id,
        # Calls in progress get no answer when a leader dies. There must be time to detect that and
        # to find another member, before the others miss too many heartbeats.
        answer_timeout=max(_MIN_ANSWER_TIMEOUT, interval * attempts / 3),
        # It must survive one failed renewal. Beyond that, its duration does not affect when a node
        # is lost, because its absence counts for that time; half of the time is left for coming
        # back.
        presence_ttl=bounded(interval * max(2.0, attempts / 2)),
        # It is renewed three times per duration, so its last two thirds are certain.
        job_ttl=bounded(max(options.job_ttl, 1.5 * verdict_ttl)),
        bounds=bounds,
        clock=clock,
    )


def _with_current_names(params: RendezvousParameters) -> RendezvousParameters:
    """Return the parameters, with the first backend's `timeout` under its current name."""
    if params.backend != _LEGACY or "timeout" not in params.config:
        return params
    params = copy.copy(params)
    params.config = dict(params.config)
    timeout = params.config.pop("timeout")
    params.config.setdefault("join_timeout", timeout)
    return params


class EtcdSession(EtcdClient):
    """A client with the leases of one agent in one job.

    Args:
        options: the options of the backend.
        protocol: etcd's protocol.
        run_id: the id of the job.
        answer_timeout: as for the client.
        presence_ttl: seconds after which this agent's heartbeat expires without renewal.
        job_ttl: seconds after which the job's keys expire if no agent renews them.
        bounds: as for the client.
        clock: a monotonic clock in seconds, by which leases are renewed.
    """

    def __init__(
        self,
        options: EtcdOptions,
        protocol: Protocol,
        run_id: str,
        *,
        answer_timeout: float,
        presence_ttl: float,
        job_ttl: float,
        bounds: EtcdBounds = ETCD_BOUNDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(options, protocol, answer_timeout=answer_timeout, bounds=bounds)
        self.job_lease = JobLease(self, f"{options.prefix}\n{run_id}", job_ttl, clock)
        self.presence_lease = PresenceLease(self, presence_ttl, clock)

    def connect(self) -> EtcdStore:
        """Open a connection, in about five seconds at most; the caller retries.

        Raises:
            RendezvousConnectionError: no member answers.
            EtcdAccessError: no member has answered within `connect_timeout`, or a retry cannot
                help.
        """
        self.link()
        try:
            self.job_lease.renew()
        except CallError as error:
            raise self.refusal("LeaseGrant", error) from error
        return EtcdStore(self, self.job_lease, self.presence_lease)
