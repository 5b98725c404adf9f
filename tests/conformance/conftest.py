from __future__ import annotations

from plaunch.testing.etcd_fixtures import etcd_server  # noqa: F401 - a fixture
