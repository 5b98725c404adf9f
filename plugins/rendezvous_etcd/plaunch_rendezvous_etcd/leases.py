"""Leases: keys vanish when the lease that they are attached to is not renewed.

A renewal makes no new revision, so it adds nothing to what etcd keeps.

etcd gives no lease of less than about two seconds, takes up to half a second longer to end one, and
ends all of them if it was paused for longer than they last. A renewal that comes too late is not
refused, but answered with a time to live of 0.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from typing import TYPE_CHECKING

from plaunch_rendezvous_etcd.link import CallError

if TYPE_CHECKING:
    from plaunch_rendezvous_etcd.client import EtcdClient

_LEAST_TTL = 2  # seconds
_RENEWALS = 3  # in the time that a lease lasts
_EXISTS = "lease already exists"
_GONE = "requested lease not found"


class _Lease:
    """The common part of both kinds.

    Args:
        client: leads to etcd.
        ttl: how long it lasts without a renewal, in seconds.
    """

    def __init__(self, client: EtcdClient, ttl: float) -> None:
        self.ttl = max(_LEAST_TTL, math.ceil(ttl))
        self._client = client
        self._lock = threading.Lock()
        self._renew_at = 0.0

    def is_due(self) -> bool:
        """Whether it is time to renew it."""
        return time.monotonic() >= self._renew_at

    def _renewed(self, began: float) -> None:
        self._renew_at = began + self.ttl / _RENEWALS

    def _keep_alive(self, number: int) -> bool:
        """Renew a lease; False if etcd does not know it any more."""
        began = time.monotonic()
        request = self._client.protocol.message("LeaseKeepAliveRequest")(ID=number)
        if self._client.call("Lease", "LeaseKeepAlive", request).TTL <= 0:
            return False
        self._renewed(began)
        return True

    def _grant(self, number: int) -> int:
        began = time.monotonic()
        request = self._client.protocol.message("LeaseGrantRequest")(TTL=self.ttl, ID=number)
        granted = self._client.call("Lease", "LeaseGrant", request)
        self.ttl = int(granted.TTL)  # an etcd with long elections gives no short ones
        self._renewed(began)
        return int(granted.ID)


class JobLease(_Lease):
    """The lease that all keys of a job are attached to; all of its agents renew it.

    Its number follows from the prefix and the run id, so that there is only one.

    Args:
        name: what is the same for all agents of the job, and for no others.
    """

    def __init__(self, client: EtcdClient, name: str, ttl: float) -> None:
        super().__init__(client, ttl)
        digest = hashlib.sha256(f"plaunch job\n{name}".encode()).digest()
        self.number = int.from_bytes(digest[:8], "big") >> 1 or 1

    def renew(self) -> None:
        """Renew it if it is due."""
        if self.is_due():
            self.ensure()

    def ensure(self) -> None:
        """Renew it, or create it again if it has ended."""
        with self._lock:
            if self._keep_alive(self.number):
                return
            began = time.monotonic()
            try:
                self._grant(self.number)
            except CallError as error:
                if _EXISTS not in error.details:
                    raise
                self._renewed(began)  # another agent was faster


class PresenceLease(_Lease):
    """The lease that one agent's heartbeat is attached to; it has one after the other."""

    def __init__(self, client: EtcdClient, ttl: float) -> None:
        super().__init__(client, ttl)
        self._number = 0
        self._beat: tuple[str, bytes] | None = None  # key and value that it holds

    def renew(self, lost: int = 0, *, at_once: bool = False) -> int:
        """The number of the lease, renewed if that is due.

        Args:
            lost: a number that etcd does not know any more; there is a new lease then.
            at_once: whether it is due in any case.
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
        """Whether this is the last heartbeat that was written under the present lease."""
        with self._lock:
            return self._beat == (key, value)

    def written(self, number: int, key: str, value: bytes) -> None:
        """Note what was written under a lease, unless there is another one now."""
        with self._lock:
            if number == self._number:
                self._beat = (key, value)


def is_lease_gone(error: CallError) -> bool:
    """Whether a write has failed because etcd does not know its lease any more."""
    return _GONE in error.details
