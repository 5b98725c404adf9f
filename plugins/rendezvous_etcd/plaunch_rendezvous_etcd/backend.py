"""From parameters to a handler: what the user wants of etcd, and how this node is reached."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plaunch.durations import Duration, bounded
from plaunch.rendezvous import BackendTraits, backend_traits
from plaunch_membership import DynamicRendezvousHandler, Timing
from plaunch_network import find_node_address

from plaunch_rendezvous_etcd.options import DEFAULT_PORT, OPTIONS, read_options
from plaunch_rendezvous_etcd.protocol import load_protocol
from plaunch_rendezvous_etcd.session import EtcdSession

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.rendezvous import RendezvousHandler, RendezvousParameters
    from plaunch_membership import Connect

_LEGACY = "etcd"  # torchrun's first backend, which calls `join_timeout` `timeout`

_LEAST_ANSWER_TIMEOUT = 1.0  # seconds


@dataclass(frozen=True)
class EtcdBackend:
    """The backend's findings, for the handler.

    Args:
        connect: opens a connection to the store, in any thread, in about five seconds at most.
        address: what the other nodes reach this one under.
        endpoint: how messages name the store.
        release: ends what all connections share.
    """

    connect: Connect
    address: str
    endpoint: str
    release: Callable[[], None]


@backend_traits(
    BackendTraits(needs_endpoint=True, default_port=DEFAULT_PORT, coordinates_restarts=True)
)
def create_etcd_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Create the handler of `etcd-v2` or `etcd`; it connects to nothing yet.

    Raises:
        UsageError: an option is unknown or has a bad value.
        PluginLoadError: grpc, protobuf or etcd3 is missing.
    """
    params = _in_todays_words(params)
    timing = Timing.from_parameters(params, OPTIONS)  # refuses options before grpc is imported
    backend = prepare_backend(params)
    try:
        return DynamicRendezvousHandler(
            params,
            backend.connect,
            address=backend.address,
            endpoint=backend.endpoint,
            release=backend.release,
            outlives_job=True,
            timing=timing,
        )
    except BaseException:
        backend.release()
        raise


def prepare_backend(params: RendezvousParameters) -> EtcdBackend:
    """Read the backend's own options, and import what it needs.

    It is called on the main thread. The longest it takes is a name server that does not answer.

    Raises:
        UsageError: an option has a bad value.
        PluginLoadError: grpc, protobuf or etcd3 is missing.
    """
    options = read_options(params, os.environ)
    first = options.endpoints[0]
    address = find_node_address(
        first.host, first.port, max_nodes=params.max_nodes, local_addr=params.local_addr
    )
    interval = params.get_as_seconds("keep_alive_interval") or 1.0
    attempts = params.get_as_int("keep_alive_max_attempt") or 5
    verdict_ttl = params.get_as_seconds("verdict_ttl", 0.0, Duration(may_be_zero=True)) or 0.0
    session = EtcdSession(
        options,
        load_protocol(),
        params.run_id,
        # What is under way when a leader dies gets no answer. There must be time to notice that,
        # and to find another member, before the others miss a heartbeat too often.
        answer_timeout=max(_LEAST_ANSWER_TIMEOUT, interval * attempts / 3),
        # It must survive one renewal that fails. Beyond that its length does not matter to when a
        # node is lost, as it counts for that; half of the time is left for coming back.
        presence_ttl=bounded(interval * max(2.0, attempts / 2)),
        # It is renewed three times in its life, so its last two thirds are certain.
        job_ttl=bounded(max(options.job_ttl, 1.5 * verdict_ttl)),
    )
    return EtcdBackend(session.connect, address, options.endpoint, session.close)


def _in_todays_words(params: RendezvousParameters) -> RendezvousParameters:
    """The parameters, with the first backend's `timeout` under the name that it has today."""
    if params.backend != _LEGACY or "timeout" not in params.config:
        return params
    params = copy.copy(params)
    params.config = dict(params.config)
    timeout = params.config.pop("timeout")
    params.config.setdefault("join_timeout", timeout)
    return params
