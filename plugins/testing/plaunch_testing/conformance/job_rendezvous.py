"""The conformance suite for rendezvous handlers that know the whole job."""

from __future__ import annotations

from plaunch_testing.conformance.jobs import Jobs
from plaunch_testing.conformance.rounds import Rounds


class RendezvousConformance(Rounds, Jobs):
    """Subclass this suite and implement `create`; pytest collects the subclass.

    All handlers of a test must share one store, which must live until the end of the test,
    whichever handler ends first. It may contain data: every test has its own run id.

    Tests that kill a node, or corrupt its writes, intercept its connections to the store. They are
    skipped for handlers other than `DynamicRendezvousHandler`.
    """
