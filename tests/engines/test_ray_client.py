"""The process that is connected to Ray, with a cluster in the place of Ray's."""

import asyncio
import contextlib
import json
import os
import socket
import sys
import threading
from types import SimpleNamespace

import pytest
from plaunch_engines.ray_client import RayClient


class FakeCluster:
    """Answers when it is allowed to, and has no node for the agents."""

    address = "head:6379"

    def __init__(self, *, answers, too_small):
        self.answers = threading.Event()
        if answers:
            self.answers.set()
        self._too_small = too_small

    def connect(self):
        self.answers.wait()

    def reserve(self, agents):
        return [SimpleNamespace(node="") for _ in agents]

    def create_actor(self, bundle):
        del bundle
        return SimpleNamespace(start=SimpleNamespace(remote=lambda command: asyncio.Future()))

    def is_too_small(self):
        return self._too_small

    def describe_wait(self):
        return "5 nodes are requested; there are 3"


@pytest.fixture(autouse=True)
def without_ray(monkeypatch):
    errors = SimpleNamespace(RayActorError=OSError)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(exceptions=errors, kill=id))


async def run_client(cluster, silence, play):
    """Request an agent, and call `play` with a function that reads a line of its stderr."""
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stdin, stdin_end = os.pipe()
    err, err_end = os.pipe()
    null = os.open(os.devnull, os.O_WRONLY)
    message = {"index": 0, "command": ["python"], "is_last": True}
    socket.send_fds(control, [json.dumps(message).encode()], [stdin, null, err_end])
    client = asyncio.ensure_future(RayClient(theirs, cluster, silence=silence).run())
    try:
        with os.fdopen(err) as lines:
            await play(lambda: asyncio.to_thread(lines.readline))
            os.close(stdin_end)
            while json.loads(await asyncio.to_thread(control.recv, 1000)).get("code") is None:
                pass
    finally:
        cluster.answers.set()
        client.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await client
        for fd in (stdin, err_end, null):
            os.close(fd)
        control.close()
        theirs.close()


@pytest.mark.parametrize("too_small", [False, True])
def test_a_cluster_that_answers_late_is_short_of_nodes_after_that(too_small):
    cluster = FakeCluster(answers=False, too_small=too_small)

    async def play(read):
        assert "the Ray cluster head:6379 has not answered yet" in await read()
        cluster.answers.set()
        assert await read() == "5 nodes are requested; there are 3\n"

    asyncio.run(run_client(cluster, 0.01, play))


def test_a_shortage_that_is_certain_is_said_at_once():
    async def play(read):
        assert await read() == "5 nodes are requested; there are 3\n"

    asyncio.run(run_client(FakeCluster(answers=True, too_small=True), 600.0, play))
