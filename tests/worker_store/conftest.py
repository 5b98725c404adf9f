"""A store with a fake torch, and a loop around it."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time

import pytest
from plaunch_worker_store import TorchStore
from plaunch_worker_store.hosting import Interpreter
from plaunch_worker_store.listening import listen

from helpers.fake_torch import write_fake_torch
from helpers.ports import free_port
from helpers.waiting import BOUND

LOOK = 0.02  # seconds; a test also waits for events that the store does not watch


@pytest.fixture
def torch_folder(tmp_path):
    """The folder of the fake torch."""
    return write_fake_torch(tmp_path / "fakes")


class Stage:
    """One store, with a loop as in an agent."""

    def __init__(self, torch_folder):
        self.pids = []  # the processes that it has started
        self.env = {**os.environ, "PYTHONPATH": str(torch_folder)}
        self.port = free_port()
        self.guests = []
        self.store = None

    def open(self, *, python=sys.executable, nodes=1, folders=(), options=None, **env):
        def interpreter():
            return Interpreter(python, {**self.env, **env}, folders)

        listener = listen("127.0.0.1", self.port, nodes=nodes)
        name = f"the workers' store at 127.0.0.1:{self.port}"
        self.store = TorchStore(listener, name, interpreter, self.start, **(options or {}))

    def start(self, command, env, **options):
        """Start a process, as an agent does."""
        process = subprocess.Popen(command, env=env, start_new_session=True, **options)
        self.pids.append(process.pid)
        return process

    def connect(self):
        guest = socket.create_connection(("127.0.0.1", self.port), BOUND)
        self.guests.append(guest)
        return guest

    def turn(self, condition):
        """Run the loop until `condition` holds, or the store is lost; returns the error then."""
        deadline = time.monotonic() + BOUND
        while not condition():
            assert time.monotonic() < deadline, "it never came"
            poller = select.poll()
            for fd in self.store.fds():
                poller.register(fd, select.POLLIN)
            due = self.store.due()
            poller.poll(1000 * (LOOK if due is None else min(due, LOOK)))
            lost = self.store.tend()
            if lost is not None:
                return lost
        return None

    def hear(self, guest):
        """Return the server's answer to a client."""
        guest.setblocking(False)
        said = []

        def has_said():
            try:
                said.append(guest.recv(16).decode())
            except BlockingIOError:
                return False
            except ConnectionResetError:
                said.append("")
            return True

        lost = self.turn(has_said)
        assert lost is None, lost
        return said[0]

    def serve(self, **settings):
        """Open the store, and wait until the launcher knows a server."""
        self.open(**settings)
        assert self.hear(self.connect()) == "lean"
        assert self.turn(self.is_served) is None

    def is_served(self):
        """Whether the launcher knows that there is a server."""
        return self.store.is_served

    def close(self):
        if self.store is not None:
            self.store.close()
        for guest in self.guests:
            guest.close()


@pytest.fixture
def stage(torch_folder):
    made = Stage(torch_folder)
    yield made
    made.close()
