"""A cluster of real etcd servers on one machine, for tests that stop or kill members."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from plaunch_rendezvous_etcd.testing.server import (
    MAX_STARTS,
    POLL_INTERVAL,
    PORT_IN_USE,
    START_TIMEOUT,
    EtcdServer,
    EtcdUnavailableError,
    Started,
)


class EtcdCluster(Started):
    """Several members on one machine; use it as a context manager, or call `start` and `close`.

    Args:
        size: the number of members.
        settings: arguments of each `EtcdServer`.
    """

    def __init__(self, size: int = 3, **settings: Any) -> None:
        self.members = [EtcdServer(name=f"etcd{n}", **settings) for n in range(size)]
        self._has_run = False

    @property
    def endpoint(self) -> str:
        """All members, in the format of `--rdzv-endpoint`."""
        return ",".join(member.endpoint for member in self.members)

    def start(self) -> None:
        """Start all members, and return when they have a leader.

        Raises:
            EtcdUnavailableError: they elect none in time.
        """
        for attempt in range(1, MAX_STARTS + 1):
            try:
                self._start_members()
                break
            except EtcdUnavailableError:
                is_taken = any(PORT_IN_USE in member.log for member in self.members)
                if self._has_run or not is_taken or attempt == MAX_STARTS:
                    raise
                for member in self.members:
                    member.forget()
                    member.choose_ports()
        self._has_run = True
        if self.members[0].users:
            self.members[0].switch_on_users()

    def _start_members(self) -> None:
        cluster = ",".join(f"{member.name}={member.peer_url}" for member in self.members)
        for member in self.members:
            member.cluster = cluster
            member.launch()
        for member in self.members:
            member.wait_until_healthy()

    def leader(self, timeout: float = START_TIMEOUT) -> EtcdServer:
        """Return the current leader; wait for an election if there is none.

        Raises:
            EtcdUnavailableError: none is elected in time.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            for member in self.members:
                with contextlib.suppress(OSError, ValueError, KeyError):
                    if member.is_leader():
                        return member
            time.sleep(POLL_INTERVAL)
        raise EtcdUnavailableError(f"no member leads within {timeout:g} s")

    def close(self) -> None:
        """Stop all members, and delete their data; may be called twice."""
        for member in self.members:
            member.close()
