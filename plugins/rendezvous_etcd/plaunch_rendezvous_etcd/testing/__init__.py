"""Real etcd servers for tests and first steps: alone, in a cluster, with TLS and users.

`plaunch_rendezvous_etcd.testing.fixtures` provides them as pytest fixtures. None of this needs grpc
or protobuf.
"""

from plaunch_rendezvous_etcd.testing.certificates import Certificates as Certificates
from plaunch_rendezvous_etcd.testing.certificates import create_certificates as create_certificates
from plaunch_rendezvous_etcd.testing.cluster import EtcdCluster as EtcdCluster
from plaunch_rendezvous_etcd.testing.server import EtcdServer as EtcdServer
from plaunch_rendezvous_etcd.testing.server import EtcdUnavailableError as EtcdUnavailableError
from plaunch_rendezvous_etcd.testing.server import find_etcd as find_etcd
from plaunch_rendezvous_etcd.testing.server import free_ports as free_ports
