"""The store of a job passes the conformance suite of stores."""

from __future__ import annotations

import pytest
from plaunch_job_store.store import JobStore
from plaunch_testing.conformance import RendezvousStoreConformance

from helpers.job_store import Served


class TestJobStore(RendezvousStoreConformance):
    @pytest.fixture(autouse=True)
    def _server(self):
        self.served = Served(token=b"0123456789abcdef")
        yield
        self.served.close()

    def connect(self):
        return JobStore(self.served.client())


class TestSharedConnection(TestJobStore):
    def connect(self):
        clients = self.served.clients
        return JobStore(clients[0] if clients else self.served.client())
