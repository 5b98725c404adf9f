"""The `etcd-v2` and `etcd` rendezvous backends: the job's state in etcd, over its v3 API.

Nothing here imports grpc or protobuf before a backend is selected and its handler is created.
"""

from plaunch_rendezvous_etcd.backend import create_etcd_handler as create_etcd_handler
from plaunch_rendezvous_etcd.backend import prepare_backend as prepare_backend
from plaunch_rendezvous_etcd.client import EtcdAccessError as EtcdAccessError
from plaunch_rendezvous_etcd.client import EtcdClient as EtcdClient
from plaunch_rendezvous_etcd.store import EtcdStore as EtcdStore
