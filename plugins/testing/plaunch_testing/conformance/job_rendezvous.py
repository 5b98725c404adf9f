"""What every rendezvous handler must do that knows the whole job."""

from __future__ import annotations

from plaunch_testing.conformance.jobs import Jobs
from plaunch_testing.conformance.rounds import Rounds


class RendezvousConformance(Rounds, Jobs):
    """Derive from it, say how to `create` a handler, and let pytest collect the class.

    All handlers of a test must share one store, which must be there until its end, whichever
    handler goes first. It need not be empty: every test has a run id of its own.

    Tests that let a node die, or garble what it writes, do so between the handler and its store.
    They are skipped for a handler that is no `DynamicRendezvousHandler`.
    """
