"""Creates a handler from the parameters: the client of etcd, and this node's address."""

from __future__ import annotations

import copy
import os
from typing import TYPE_CHECKING

from plaunch.durations import Duration, bounded
from plaunch.rendezvous import BackendTraits, backend_traits
from plaunch_membership import DynamicRendezvousHandler, StoreAccess, Timing
from plaunch_network import find_node_address

from plaunch_rendezvous_etcd.options import DEFAULT_PORT, OPTIONS, read_options
from plaunch_rendezvous_etcd.protocol import load_protocol
from plaunch_rendezvous_etcd.session import EtcdSession

if TYPE_CHECKING:
    from plaunch.rendezvous import RendezvousHandler, RendezvousParameters

_LEGACY = "etcd"  # torchrun's first backend, which names `join_timeout` `timeout`

_MIN_ANSWER_TIMEOUT = 1.0  # seconds


@backend_traits(
    BackendTraits(needs_endpoint=True, default_port=DEFAULT_PORT, coordinates_restarts=True)
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
        # Calls in progress get no answer when a leader dies. There must be time to detect that and
        # to find another member, before the others miss too many heartbeats.
        answer_timeout=max(_MIN_ANSWER_TIMEOUT, interval * attempts / 3),
        # It must survive one failed renewal. Beyond that, its duration does not affect when a node
        # is lost, because its absence counts for that time; half of the time is left for coming
        # back.
        presence_ttl=bounded(interval * max(2.0, attempts / 2)),
        # It is renewed three times per duration, so its last two thirds are certain.
        job_ttl=bounded(max(options.job_ttl, 1.5 * verdict_ttl)),
    )
    return StoreAccess(
        session.connect, address, options.endpoint, release=session.close, outlives_job=True
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
