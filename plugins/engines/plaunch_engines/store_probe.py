"""Whether a node reaches the store that the command offers to host; runs in the node's agent."""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from typing import TYPE_CHECKING, NamedTuple, cast

from plaunch.errors import PlaunchError, RendezvousConnectionError
from plaunch.threads import BoundedCall
from plaunch_job_store.authentication import Authenticator
from plaunch_job_store.client import StoreClient
from plaunch_network import parse_rendezvous_endpoint

from plaunch_engines.records import MAX_PART

if TYPE_CHECKING:
    from collections.abc import Sequence

PROBE_TIMEOUT = 2.0  # seconds
# In Linux's tcp_info: the round trip of the handshake, in microseconds.
_ROUND_TRIP = struct.Struct("68xI")


class ProbeResult(NamedTuple):
    """The result of one attempt.

    Args:
        endpoint: what was tried.
        microseconds: of a round trip; 0 if the store was not reached.
        error: why it was not reached; otherwise empty.
    """

    endpoint: str
    microseconds: int = 0
    error: str = ""


def probe_stores(
    endpoints: Sequence[str], token: str, run_id: str, timeout: float = PROBE_TIMEOUT
) -> list[ProbeResult]:
    """Try to reach a store at each endpoint, all at once.

    Args:
        endpoints: with numeric addresses.
        token: of the job.
        run_id: of the job.
        timeout: seconds for all.
    """
    authenticator = Authenticator(os.fsencode(token), run_id)
    deadline = time.monotonic() + timeout
    calls = [BoundedCall("probe", _Probe(e, authenticator, timeout).run) for e in endpoints]
    results = []
    for endpoint, call in zip(endpoints, calls, strict=True):
        has_returned = call.wait(max(deadline - time.monotonic(), 0.0))
        error = call.error if has_returned else _silent(endpoint, timeout)
        if error is None:
            results.append(ProbeResult(endpoint, cast("int", call.result)))
        elif isinstance(error, PlaunchError):
            results.append(ProbeResult(endpoint, error=str(error)[:MAX_PART]))
        else:
            raise error
    return results


class _Probe:
    """One attempt to reach a store.

    Args:
        endpoint: of the store.
        authenticator: proves that this node knows the token, and checks that the store does.
        timeout: in seconds.
    """

    def __init__(self, endpoint: str, authenticator: Authenticator, timeout: float) -> None:
        self._endpoint = endpoint
        self._timeout = timeout
        self._authenticator = authenticator
        self._microseconds = 0

    def run(self) -> int:
        """Return the time of a round trip, in microseconds.

        Raises:
            RendezvousError: the store is not reached, or is another one.
        """
        StoreClient(
            self._dial,
            self._authenticator,
            self._endpoint,
            self._timeout,
            connect_timeout=self._timeout,
        ).close()
        return self._microseconds

    def _dial(self, timeout: float) -> socket.socket:
        began = time.monotonic()
        try:
            sock = socket.create_connection(parse_rendezvous_endpoint(self._endpoint, 0), timeout)
        except TimeoutError as error:
            raise _silent(self._endpoint, self._timeout) from error
        self._microseconds = _round_trip_of(sock) or int((time.monotonic() - began) * 1e6)
        return sock


def _round_trip_of(sock: socket.socket) -> int:
    """Return the kernel's time of the handshake, on which a busy machine has no influence."""
    if sys.platform != "linux":
        return 0
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ROUND_TRIP.size)
    return int(_ROUND_TRIP.unpack(info)[0]) if len(info) == _ROUND_TRIP.size else 0


def _silent(endpoint: str, timeout: float) -> RendezvousConnectionError:
    return RendezvousConnectionError(
        f"the rendezvous store at {endpoint} cannot be reached: no answer within {timeout:g} s, "
        "as behind a firewall"
    )
