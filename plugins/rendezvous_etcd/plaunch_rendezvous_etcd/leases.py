"""Leases: etcd deletes keys when their lease is not renewed.

A renewal makes no new revision, so it adds nothing to etcd's data.

etcd grants no lease of less than about two seconds, takes up to half a second longer to expire one,
and expires all of them if it was suspended for longer than they last. A renewal that comes too late
is not refused, but answered with a time to live of 0.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from typing import TYPE_CHECKING

from plaunch_rendezvous_etcd.link import CallError

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch_rendezvous_etcd.client import EtcdClient

_MIN_TTL = 2  # seconds
_RENEWALS = 3  # per duration of a lease
_EXISTS = "lease already exists"
_GONE = "requested lease not found"


class _Lease:
    """The common part of both kinds.

    Args:
        client: the client of etcd.
        ttl: its duration without a renewal, in seconds.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self, client: EtcdClient, ttl: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.ttl = max(_MIN_TTL, math.ceil(ttl))
        self._client = client
        self._clock = clock
        self._lock = threading.Lock()
        self._renew_at = 0.0

    def is_due(self) -> bool:
        """Whether it is time to renew it."""
        return self._clock() >= self._renew_at

    def _renewed(self, began: float) -> None:
        self._renew_at = began + self.ttl / _RENEWALS

    def _keep_alive(self, number: int) -> bool:
        """Renew a lease; False if it has expired."""
        began = self._clock()
        request = self._client.protocol.message("LeaseKeepAliveRequest")(ID=number)
        if self._client.call("Lease", "LeaseKeepAlive", request).TTL <= 0:
            return False
        self._renewed(began)
        return True

    def _grant(self, number: int) -> int:
        began = self._clock()
        request = self._client.protocol.message("LeaseGrantRequest")(TTL=self.ttl, ID=number)
        granted = self._client.call("Lease", "LeaseGrant", request)
        self.ttl = int(granted.TTL)  # an etcd with a long election timeout grants no short ones
        self._renewed(began)
        return int(granted.ID)


class JobLease(_Lease):
    """The lease of all keys of a job; all of its agents renew it.

    Its id follows from the prefix and the run id, so that there is only one.

    Args:
        name: the same for all agents of the job, and for no others.
    """

    def __init__(
        self,
        client: EtcdClient,
        name: str,
        ttl: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(client, ttl, clock)
        digest = hashlib.sha256(f"plaunch job\n{name}".encode()).digest()
        self.id = int.from_bytes(digest[:8], "big") >> 1 or 1

    def renew(self) -> None:
        """Renew it if it is due."""
        if self.is_due():
            self.ensure()

    def ensure(self) -> None:
        """Renew it, or create it again if it has expired."""
        with self._lock:
            if self._keep_alive(self.id):
                return
            began = self._clock()
            try:
                self._grant(self.id)
            except CallError as error:
                if _EXISTS not in error.details:
                    raise
                self._renewed(began)  # another agent was faster


class PresenceLease(_Lease):
    """The lease of one agent's heartbeat; it is replaced when it has expired."""

    def __init__(
        self, client: EtcdClient, ttl: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(client, ttl, clock)
        self._number = 0
        self._beat: tuple[str, bytes] | None = None  # the key and value of the heartbeat

    def renew(self, lost: int = 0, *, at_once: bool = False) -> int:
        """Return the id of the lease, renewed if that is due.

        Args:
            lost: the id of an expired lease, which is then replaced.
            at_once: renew it even if that is not due.
        """
        with self._lock:
            is_there = self._number not in (0, lost)
            if is_there and (at_once or self.is_due()):
                is_there = self._keep_alive(self._number)
            if not is_there:
                self._beat = None
                self._number = self._grant(0)
            return self._number

    def holds(self, key: str, value: bytes) -> bool:
        """Whether this heartbeat was the last one written under the current lease."""
        with self._lock:
            return self._beat == (key, value)

    def written(self, number: int, key: str, value: bytes) -> None:
        """Record what was written under a lease, unless it has been replaced."""
        with self._lock:
            if number == self._number:
                self._beat = (key, value)


def is_lease_gone(error: CallError) -> bool:
    """Whether a write has failed because its lease has expired."""
    return _GONE in error.details
