"""What the conformance suites for all kinds of plugins have in common."""

from __future__ import annotations

import contextlib
import socket

import pytest
from plaunch_testing.conformance.plugin_suite import descriptors, opened


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
def test_connections_of_a_server_of_the_test_are_not_counted(family, tmp_path):
    address = ("127.0.0.1", 0) if family == socket.AF_INET else str(tmp_path / "socket")
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(address, family=family))
        before = descriptors()
        client = stack.enter_context(socket.socket(family))
        client.connect(server.getsockname())
        accepted = stack.enter_context(server.accept()[0])
        (found,) = opened(before)
        assert found.startswith("socket:")
        client.close()
        assert opened(before) == []
        assert accepted.fileno() in descriptors()


def test_files_and_servers_of_a_plugin_are_counted(tmp_path):
    before = descriptors()
    with open(tmp_path / "file", "w"), socket.create_server(("127.0.0.1", 0)):
        assert len(opened(before)) == 2
    assert opened(before) == []
