"""The backend on etcd passes the conformance suites, also with TLS and users."""

from __future__ import annotations

import pytest
from plaunch_rendezvous_etcd import create_etcd_handler
from plaunch_testing.conformance import RendezvousConformance, RendezvousStoreConformance


class TestEtcdStore(RendezvousStoreConformance):
    @pytest.fixture(autouse=True)
    def _backend(self, prepare, etcd_server):
        self.backend = prepare(etcd_server.endpoint)

    def connect(self):
        return self.backend.connect()


class TestSecureEtcdStore(RendezvousStoreConformance):
    @pytest.fixture(autouse=True)
    def _backend(self, prepare, secure_server, secure):
        self.backend = prepare(secure_server.endpoint, **secure)

    def connect(self):
        return self.backend.connect()


class TestRendezvousOverEtcd(RendezvousConformance):
    backend = "etcd-v2"

    @pytest.fixture(autouse=True)
    def _server(self, etcd_server):
        self.endpoint = etcd_server.endpoint

    def create(self, params):
        return create_etcd_handler(params)


# All operations are tested with TLS and users above, and a job with them in tests/e2e.
@pytest.mark.exhaustive
class TestRendezvousOverSecureEtcd(TestRendezvousOverEtcd):
    @pytest.fixture(autouse=True)
    def _server(self, secure_server, secure):
        self.endpoint, self.config = secure_server.endpoint, secure
