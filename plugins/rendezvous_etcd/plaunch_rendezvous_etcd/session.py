"""Shared by the connections of one agent: a client of etcd, leases, and watches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch_rendezvous_etcd.client import ANSWER_TIMEOUT, EtcdClient
from plaunch_rendezvous_etcd.leases import JobLease, PresenceLease
from plaunch_rendezvous_etcd.link import CallError
from plaunch_rendezvous_etcd.store import EtcdStore
from plaunch_rendezvous_etcd.watching import WatchStream

if TYPE_CHECKING:
    from plaunch_rendezvous_etcd.options import EtcdOptions
    from plaunch_rendezvous_etcd.protocol import Protocol


class EtcdSession(EtcdClient):
    """A client with the leases and watches of one agent in one job.

    Args:
        options: the options of the backend.
        protocol: etcd's protocol.
        run_id: the id of the job.
        answer_timeout: as for the client.
        presence_ttl: seconds after which this agent's heartbeat expires without renewal.
        job_ttl: seconds after which the job's keys expire if no agent renews them.
    """

    def __init__(
        self,
        options: EtcdOptions,
        protocol: Protocol,
        run_id: str,
        *,
        answer_timeout: float = ANSWER_TIMEOUT,
        presence_ttl: float = 6.0,
        job_ttl: float = 7200.0,
    ) -> None:
        super().__init__(options, protocol, answer_timeout=answer_timeout)
        self.job_lease = JobLease(self, f"{options.prefix}\n{run_id}", job_ttl)
        self.presence_lease = PresenceLease(self, presence_ttl)
        self.watches = WatchStream(self)

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
        return EtcdStore(self, self.job_lease, self.presence_lease, self.watches)

    def close(self) -> None:
        """End all calls and watches in progress; may be called twice."""
        self.watches.close()
        super().close()
