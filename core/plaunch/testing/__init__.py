"""What tests of plugins and of launches need: fakes, a plugin manager of one's own, real etcds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.lazy import attach

if TYPE_CHECKING:
    from plaunch.testing.certificates import Certificates as Certificates
    from plaunch.testing.certificates import create_certificates as create_certificates
    from plaunch.testing.etcd import EtcdServer as EtcdServer
    from plaunch.testing.etcd import EtcdUnavailableError as EtcdUnavailableError
    from plaunch.testing.etcd_cluster import EtcdCluster as EtcdCluster
    from plaunch.testing.job_rendezvous import FakeJobRendezvous as FakeJobRendezvous
    from plaunch.testing.plugins import plugin_manager as plugin_manager
    from plaunch.testing.rendezvous import FakeElasticRendezvous as FakeElasticRendezvous
    from plaunch.testing.rendezvous import FakeRendezvous as FakeRendezvous
    from plaunch.testing.store import MemoryBoard as MemoryBoard
    from plaunch.testing.store import MemoryStore as MemoryStore

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        ".certificates": "Certificates create_certificates",
        ".etcd": "EtcdServer EtcdUnavailableError",
        ".etcd_cluster": "EtcdCluster",
        ".job_rendezvous": "FakeJobRendezvous",
        ".plugins": "plugin_manager",
        ".rendezvous": "FakeElasticRendezvous FakeRendezvous",
        ".store": "MemoryBoard MemoryStore",
    },
)
