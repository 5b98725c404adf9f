"""pytest fixtures with real etcd servers; name this module in `pytest_plugins`.

    pytest_plugins = ["plaunch_rendezvous_etcd.testing.fixtures"]

    def test_with_etcd(etcd_server):
        params = RendezvousParameters("etcd-v2", etcd_server.endpoint, "job", 1, 2)

A test that uses them is skipped where there is no etcd.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from plaunch_rendezvous_etcd.testing.cluster import EtcdCluster
from plaunch_rendezvous_etcd.testing.server import EtcdServer, EtcdUnavailableError, find_etcd

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def etcd_server() -> Iterator[EtcdServer]:
    """One server for the whole run; use a new run id in each test, and do not stop it."""
    _skip_without_etcd()
    with EtcdServer() as server:
        yield server


@pytest.fixture
def own_etcd_server() -> Iterator[EtcdServer]:
    """A server for one test, which may stop, kill or suspend it."""
    _skip_without_etcd()
    with EtcdServer() as server:
        yield server


@pytest.fixture
def etcd_cluster() -> Iterator[EtcdCluster]:
    """Three members for one test, which may stop, kill or suspend them."""
    _skip_without_etcd()
    with EtcdCluster() as cluster:
        yield cluster


def _skip_without_etcd() -> None:
    try:
        find_etcd()
    except EtcdUnavailableError as error:
        pytest.skip(str(error))
