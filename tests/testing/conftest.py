from __future__ import annotations

from plaunch_rendezvous_etcd.testing.fixtures import etcd_server  # noqa: F401 - a fixture
