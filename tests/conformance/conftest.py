from __future__ import annotations

import socket

import pytest
from plaunch.testing.etcd_fixtures import etcd_server  # noqa: F401 - a fixture


@pytest.fixture
def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]
