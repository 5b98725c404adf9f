"""Real etcd servers, and clients of them."""

from __future__ import annotations

import contextlib
import itertools
import sys
from time import monotonic

import pytest

pytest.importorskip("grpc")
pytest.importorskip("google.protobuf")

from plaunch.rendezvous import RendezvousParameters
from plaunch_rendezvous_etcd import create_etcd_handler, prepare_backend
from plaunch_rendezvous_etcd.backend import create_session
from plaunch_rendezvous_etcd.client import ETCD_BOUNDS
from plaunch_rendezvous_etcd.testing import EtcdServer, create_certificates
from plaunch_rendezvous_etcd.testing.fixtures import (  # noqa: F401 - fixtures
    etcd_cluster,
    etcd_server,
    own_etcd_server,
)
from plaunch_testing.conformance.nodes import Node, close_all

from helpers.machine_parts import need

QUICK = {"keep_alive_interval": 0.5, "keep_alive_max_attempt": 5, "last_call_timeout": 0.2}
USERS = {"ann": "ann's password"}
_numbers = itertools.count()


def parameters(endpoint="", run_id=None, backend="etcd-v2", min_nodes=1, max_nodes=1, **config):
    run_id = f"job {next(_numbers)}" if run_id is None else run_id
    return RendezvousParameters(backend, endpoint, run_id, min_nodes, max_nodes, **config)


@contextlib.contextmanager
def prepared(endpoint, **config):
    """A backend, whose connections and threads are closed at the end of the block."""
    backend = prepare_backend(parameters(endpoint, **config))
    try:
        yield backend
    finally:
        backend.release()


@pytest.fixture(autouse=True)
def _servers_are_alive(request):
    """Restart a server that has exited, so that other tests do not fail, and report it."""
    for name in ("etcd_server", "secure_server"):
        if name not in request.fixturenames:
            continue
        server = request.getfixturevalue(name)
        code = None if server.process is None else server.process.poll()
        if code is not None:
            capture = request.config.pluginmanager.getplugin("capturemanager")
            with capture.global_and_fixture_disabled():
                test, output = request.node.nodeid, server.log[-2000:]
                sys.stderr.write(f"\n{name} ended with {code} before {test}:\n{output}\n")
            server.start()


@pytest.fixture
def prepare():
    with contextlib.ExitStack() as stack:
        yield lambda endpoint, **config: stack.enter_context(prepared(endpoint, **config))


@pytest.fixture
def open_session():
    """Make sessions, which are closed at the end."""
    with contextlib.ExitStack() as stack:

        def open_session(endpoint, run_id=None, *, bounds=ETCD_BOUNDS, clock=monotonic, **config):
            params = parameters(endpoint, run_id, **config)
            session = create_session(params, bounds=bounds, clock=clock)
            stack.callback(session.close)
            return session

        yield open_session


@pytest.fixture
def params_of():
    return parameters


@pytest.fixture
def make_nodes():
    """Make nodes of one job that detect losses soon; request it after what must outlive them."""
    made = []

    def make(endpoint, count, min_nodes=None, **config):
        run_id, min_nodes = f"job {next(_numbers)}", min_nodes or count
        config = {"min_nodes": min_nodes, "max_nodes": count, **QUICK, **config}
        nodes = [
            Node(create_etcd_handler(parameters(endpoint, run_id, **config))) for _ in range(count)
        ]
        made.extend(nodes)
        return nodes

    yield make
    close_all(made)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    need("openssl")
    return create_certificates(str(tmp_path_factory.mktemp("certificates")))


@pytest.fixture(scope="session")
def secure_server(etcd_server, certificates):  # noqa: F811 - is skipped where there is no etcd
    """A server with TLS, users, and cheap logins that expire after three seconds."""
    settings = {"certificates": certificates, "users": USERS, "user_prefix": "/torch/elastic/"}
    arguments = ["--auth-token-ttl", "3", "--bcrypt-cost", "4"]
    with EtcdServer(arguments=arguments, **settings) as server:
        yield server


@pytest.fixture(scope="session")
def password_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("password") / "ann"
    path.touch(mode=0o600)
    path.write_text(USERS["ann"] + "\n")
    return str(path)


@pytest.fixture
def secure(certificates, password_file):
    """The options for the secure server."""
    return {
        "protocol": "https",
        "ca_cert": certificates.ca,
        "etcd_user": "ann",
        "etcd_password_file": password_file,
    }
