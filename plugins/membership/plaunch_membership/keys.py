"""The keys of a job's records in its store."""

from __future__ import annotations

from urllib.parse import quote

NODES_OF_A_PART = 64  # nodes in one record of a world; each needs at most 10 kB


def job_key(run_id: str) -> str:
    """Return the key that holds the current incarnation of a run id."""
    return f"plaunch/{quote(run_id, safe='')}/job"


def newest_key(run_id: str) -> str:
    """Return the key that holds a copy of the newest state of a run id.

    It saves newcomers reading all states. It is a hint: it may lag, or be that of an earlier
    incarnation.
    """
    return f"plaunch/{quote(run_id, safe='')}/newest"


class Keys:
    """The keys of all records of one incarnation of a job."""

    def __init__(self, run_id: str, incarnation: str) -> None:
        self.incarnation = incarnation
        self._prefix = f"plaunch/{quote(run_id, safe='')}/{quote(incarnation, safe='')}"

    def state(self, version: int) -> str:
        """One version of the state, from 1; the first one, 0, is part of the job's record."""
        return f"{self._prefix}/state/{version}"

    @property
    def refusal(self) -> str:
        """The last node that was refused because of its settings, and why."""
        return f"{self._prefix}/refusal"

    def joined(self, round_: int) -> str:
        """The log of the nodes that join a round."""
        return f"{self._prefix}/round/{round_}/joined"

    def arrivals(self, round_: int) -> str:
        """The summary of the nodes that have joined a round which is being formed."""
        return f"{self._prefix}/round/{round_}/arrivals"

    def slot(self, round_: int, term: int, node: str) -> str:
        """The place of a node in a round."""
        return f"{self._prefix}/round/{round_}/slot/{term}/{node}"

    def world(self, round_: int, term: int, part: int = 0) -> str:
        """All nodes of a round, in parts of `NODES_OF_A_PART`."""
        key = f"{self._prefix}/round/{round_}/world/{term}"
        return f"{key}/{part}" if part else key

    def settled(self, round_: int) -> str:
        """The log in which each node reports its failures of a round."""
        return f"{self._prefix}/round/{round_}/settled"

    def done(self, round_: int) -> str:
        """The log of the nodes whose workers have all succeeded."""
        return f"{self._prefix}/round/{round_}/done"

    def store(self, round_: int) -> str:
        """The prefix of the keys that programs write to the store of a round."""
        return f"{self._prefix}/round/{round_}/store"

    @property
    def returned(self) -> str:
        """The log of the nodes that have come back after the store had lost the job."""
        return f"{self._prefix}/returned"

    def restart(self, round_: int) -> str:
        """The restart decision that led to a round, if a failure did."""
        return f"{self._prefix}/restart/{round_}"

    @property
    def tidied(self) -> str:
        """The number of the first round whose records may still exist."""
        return f"{self._prefix}/tidied"

    def beat(self, node: str) -> str:
        """A node's last heartbeat."""
        return f"{self._prefix}/beat/{node}"

    def text(self, name: str, node: str) -> str:
        """The text that a node publishes under a name."""
        return f"{self._prefix}/text/{quote(name, safe='')}/{node}"

    @property
    def departures(self) -> str:
        """The log of the nodes that know the verdict and have left."""
        return f"{self._prefix}/byes"


def tickets(log: str) -> str:
    """Return the key of the counter of a log."""
    return f"{log}/tickets"


def entry(log: str, ticket: int) -> str:
    """Return the key of the record with this ticket."""
    return f"{log}/{ticket}"
