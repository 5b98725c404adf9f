"""Suites that authors of rendezvous backends run over their own; they need pytest.

One class for each of the two things that an author may write, a store or a whole handler:

    from plaunch.testing.conformance import RendezvousConformance, RendezvousStoreConformance

    class TestMyStore(RendezvousStoreConformance):
        def connect(self):
            return MyStore("127.0.0.1:1234")

    class TestMyBackend(RendezvousConformance):
        def create(self, params):
            return create_my_handler(params)
"""

import pytest

pytest.register_assert_rewrite(
    *(f"{__name__}.{module}" for module in ("jobs", "nodes", "rounds", "stores", "suite"))
)

from plaunch.testing.conformance.rendezvous import (  # noqa: E402 - after the line above
    RendezvousConformance as RendezvousConformance,
)
from plaunch.testing.conformance.stores import (  # noqa: E402
    RendezvousStoreConformance as RendezvousStoreConformance,
)
