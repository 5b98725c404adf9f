"""Finds out whose job a store holds under a run id: plaunch's, or one of torchrun's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.errors import RendezvousClosedError

if TYPE_CHECKING:
    from plaunch_membership import Connect, RendezvousStore

# torchrun's agents keep all that they agree on under a key of this name, as base64. They end with
# an error if they find what is not, and this is not.
_MARK = b"plaunch"


class Guarded:
    """Connections to a store in which torchrun's agents do not meet under the same run id.

    They and plaunch's would not see each other, and each would form a world of its own. Whoever
    comes first has the run id: its name in torchrun's key, which is written once, keeps the others
    out. So every connection begins with writing it, also the first to a store that has been away.

    Args:
        connect: opens a connection.
        run_id: the id of the job.
        endpoint: how messages name the store.
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
            held = store.compare_set(f"torch.rendezvous.{self._run_id}", None, _MARK)
        except BaseException:
            store.close()
            raise
        if held == _MARK:
            return store
        store.close()
        raise RendezvousClosedError(
            f"the store at {self._endpoint} belongs to torchrun, whose agents run job "
            f"{self._run_id!r} there; plaunch and torchrun cannot run one job together: start all "
            "nodes with plaunch, or this one under another --rdzv-id and --rdzv-endpoint"
        )
