"""The keys of a job's records in its store."""

from __future__ import annotations

from urllib.parse import quote

NODES_OF_A_PART = 64  # of a record of a world, whose names take 10 kB at most, each


def job_key(run_id: str) -> str:
    """The key that names the present incarnation of a run id."""
    return f"plaunch/{quote(run_id, safe='')}/job"


class Keys:
    """The names of all records of one incarnation of a job."""

    def __init__(self, run_id: str, incarnation: str) -> None:
        self.incarnation = incarnation
        self._prefix = f"plaunch/{quote(run_id, safe='')}/{quote(incarnation, safe='')}"

    @property
    def versions(self) -> str:
        """Counts the states, so that latecomers need not read all; a hint, which may be wrong."""
        return f"{self._prefix}/versions"

    def state(self, version: int) -> str:
        """One version of the state."""
        return f"{self._prefix}/state/{version}"

    @property
    def refusal(self) -> str:
        """The last node that was refused because of its settings, and why."""
        return f"{self._prefix}/refusal"

    def joined(self, round_: int) -> str:
        """The log of the nodes that want to be in a round."""
        return f"{self._prefix}/round/{round_}/joined"

    def slot(self, round_: int, term: int, ticket: int) -> str:
        """The key with the outcome of a ticket of a round."""
        return f"{self._prefix}/round/{round_}/slot/{term}/{ticket}"

    def world(self, round_: int, term: int, part: int = 0) -> str:
        """All nodes of a round, in parts of `NODES_OF_A_PART`."""
        key = f"{self._prefix}/round/{round_}/world/{term}"
        return f"{key}/{part}" if part else key

    def settled(self, round_: int) -> str:
        """The log of the nodes that have reported failures."""
        return f"{self._prefix}/round/{round_}/settled"

    def done(self, round_: int) -> str:
        """The log of the nodes whose workers have all succeeded."""
        return f"{self._prefix}/round/{round_}/done"

    def store(self, round_: int) -> str:
        """The prefix of what programs keep in the store of a round."""
        return f"{self._prefix}/round/{round_}/store"

    def restart(self, round_: int) -> str:
        """What was decided after the failure that led to a round, if one did."""
        return f"{self._prefix}/restart/{round_}"

    @property
    def tidied(self) -> str:
        """Up to which round everything is deleted."""
        return f"{self._prefix}/tidied"

    def beat(self, node: str) -> str:
        """A node's last heartbeat."""
        return f"{self._prefix}/beat/{node}"

    def text(self, name: str, node: str) -> str:
        """What a node shows the others under a name."""
        return f"{self._prefix}/text/{quote(name, safe='')}/{node}"

    @property
    def departures(self) -> str:
        """The log of the nodes that know the verdict."""
        return f"{self._prefix}/byes"


def tickets(log: str) -> str:
    """The counter of a log."""
    return f"{log}/tickets"


def entry(log: str, ticket: int) -> str:
    """The record under a ticket of a log."""
    return f"{log}/{ticket}"
