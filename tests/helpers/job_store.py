"""A server of a job's store in this process, and clients of it."""

from __future__ import annotations

import socket
import threading

from plaunch_job_store.authentication import Authenticator
from plaunch_job_store.client import StoreClient
from plaunch_job_store.server import StoreServer

from helpers.waiting import BOUND


class Served:
    """A server on its own thread, and clients of it."""

    def __init__(self, token=None, **settings):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.port = self.listener.getsockname()[1]
        self.token = token
        self._wake, self._stop = socket.socketpair()
        self.server = StoreServer(
            self.listener,
            Authenticator(token, "job"),
            **{"max_connections": 100, **settings},
        )
        self.server.watch(self._wake.fileno(), self.server.stop)
        self.thread = threading.Thread(target=self.server.serve)
        self.thread.start()
        self.clients = []

    def dial(self, timeout):
        return socket.create_connection(("127.0.0.1", self.port), timeout)

    def client(self, **options):
        client = self.client_of(self.port, self.token, self.dial, **options)
        self.clients.append(client)
        return client

    def direct(self):
        client = self.client_of(self.port, self.token)
        self.clients.append(client)
        return client

    @staticmethod
    def client_of(port, token=None, dial=None, **options):
        def connect(timeout):
            return socket.create_connection(("127.0.0.1", port), timeout)

        return StoreClient(
            dial or connect,
            Authenticator(token, "job"),
            f"127.0.0.1:{port}",
            **{"request_timeout": BOUND, "connect_timeout": BOUND, **options},
        )

    def close(self):
        for client in self.clients:
            client.close()
        self._stop.close()
        self.thread.join(5)
        self._wake.close()
