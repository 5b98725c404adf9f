"""torch's two stores and the handler over them pass the conformance suites of backends."""

from __future__ import annotations

from typing import ClassVar

import pytest

pytest.importorskip("torch.distributed")

from plaunch_rendezvous_c10d import create_c10d_handler, prepare_backend
from plaunch_testing.conformance import RendezvousConformance, RendezvousStoreConformance


class TestTcpStore(RendezvousStoreConformance):
    @pytest.fixture(autouse=True)
    def _server(self, params_of):
        self.backend = prepare_backend(params_of(store="torch"))
        yield
        self.backend.release()

    def connect(self):
        return self.backend.connect()


class TestFileStore(RendezvousStoreConformance):
    waiters: ClassVar[int] = 8  # each of them polls the file

    @pytest.fixture(autouse=True)
    def _file(self, params_of, tmp_path):
        self.backend = prepare_backend(params_of(str(tmp_path / "store"), store_type="file"))

    def connect(self):
        return self.backend.connect()


class TestRendezvousOverJobStore(RendezvousConformance):
    backend: ClassVar[str] = "c10d"
    config: ClassVar[dict[str, str]] = {}

    @pytest.fixture(autouse=True)
    def _server(self, params_of):
        # None of the nodes hosts it, so that it exists until the end of the test. All operations of
        # this store are tested above, the algorithm over other stores, and both together, with the
        # loss of a node, in tests/e2e/test_multi_node.py.
        self._params_of = params_of
        self._hosts = []
        self.host()
        yield
        for host in self._hosts:
            host.release()

    def host(self, **options):
        params = self._params_of("127.0.0.1:0", 2, **self.config, **options)
        params.run_id = self._run_id
        self._hosts.append(prepare_backend(params))
        self.endpoint = self._hosts[-1].endpoint

    def create(self, params):
        return create_c10d_handler(params)

    @pytest.mark.parametrize("other", ["none", "another"])
    def test_a_node_without_the_jobs_token_is_refused(self, other, tmp_path):
        """The host of the store has the token, too."""
        (tmp_path / "host").write_text("a token of sixteen bytes or more")
        self.host(token_file=str(tmp_path / "host"))
        super().test_a_node_without_the_jobs_token_is_refused(other, tmp_path)


class TestRendezvousOverTcpStore(TestRendezvousOverJobStore):
    config: ClassVar[dict[str, str]] = {"store": "torch"}


# All operations of this store are tried above, the algorithm over others, and both together, with
# the loss of a node, in tests/e2e/test_multi_node.py.
@pytest.mark.exhaustive
class TestRendezvousOverFileStore(RendezvousConformance):
    backend: ClassVar[str] = "c10d"
    config: ClassVar[dict[str, str]] = {"store_type": "file"}
    # All nodes lock, read and poll one file.
    keep_alive_interval: ClassVar[float] = 0.4
    crowd: ClassVar[int] = 16

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        self.endpoint = str(tmp_path / "store")

    def create(self, params):
        return create_c10d_handler(params)
