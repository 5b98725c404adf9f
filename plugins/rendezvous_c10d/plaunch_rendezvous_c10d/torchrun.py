"""Prevents jobs of plaunch and of torchrun with the same run id in one store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.errors import RendezvousClosedError

if TYPE_CHECKING:
    from plaunch_membership import Connect, RendezvousStore

# torchrun's agents keep the job's record under a key of this name, as base64. They end with an
# error if the value is not base64, and this is not.
_CLAIM = b"plaunch"


class RunIdClaim:
    """Claims the run id with the first operation of every connection.

    Agents of torchrun and of plaunch would not see each other, and each kind would form a world of
    its own. The first agent claims the run id: plaunch writes a value to torchrun's key, once,
    which torchrun's agents reject. A store may lose its data, so each connection writes it.

    Args:
        connect: opens a connection.
        run_id: the id of the job.
        endpoint: the endpoint of the store, for messages.
    """

    def __init__(self, connect: Connect, run_id: str, endpoint: str) -> None:
        self._connect = connect
        self._run_id = run_id
        self._endpoint = endpoint

    def connect(self) -> RendezvousStore:
        """Open a connection.

        Raises:
            RendezvousClosedError: torchrun runs a job with this run id there.
            RendezvousConnectionError: the store cannot be reached.
        """
        store = self._connect()
        try:
            held = store.compare_set(f"torch.rendezvous.{self._run_id}", None, _CLAIM)
        except BaseException:
            store.close()
            raise
        if held == _CLAIM:
            return store
        store.close()
        raise RendezvousClosedError(
            f"the store at {self._endpoint} belongs to torchrun, whose agents run job "
            f"{self._run_id!r} there; plaunch and torchrun cannot run one job together: start all "
            "nodes with plaunch, or this one under another --rdzv-id and --rdzv-endpoint"
        )
