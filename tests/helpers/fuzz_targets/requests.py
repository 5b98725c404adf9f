"""Requests to the HTTP endpoints and to the control socket, and answers to plaunchctl."""

from __future__ import annotations

import json
import signal
import socket
from functools import cache, partial

from plaunch.agent import RequestKind, Snapshot, WorkerState
from plaunch.plugin import PluginContext
from plaunch_control import requests as control_requests
from plaunch_control.answers import ControlService
from plaunch_control.client import ClientError, _check, _read
from plaunch_status import requests as status_requests
from plaunch_status.page import Page

from helpers.fuzz_targets import Finding
from helpers.fuzz_targets.reading import Choices, check_message

MAX_LENGTH = 2048
WORDS = (
    b"GET /v1/status HTTP/1.0\r\n\r\n", b"POST /v1/stop HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
    b"Content-Length: ", b"Transfer-Encoding: chunked\r\n", b"/v1/events?after=-1&wait=0",
    b"/v1/signal", b'{"signal": "SIGUSR1", "ranks": "0-1"}', b"/v1/logs", b"/v1/end", b"/v1/leave",
    b"/v1/restart", b'{"reason": ""}', b"HTTP/1.0 200 OK\r\n\r\n", b'{"error": ""}', b'"versions"',
    b"/healthz", b"/metrics", b"Expect: 100-continue\r\n", b"HTTP/0.9", b"%00", b"all_nodes",
)  # fmt: skip
_PAGES = {"/healthz": lambda: Page("ok\n"), "/metrics": lambda: Page(b"x 1\n", kind="text/plain")}
_PIPE = 60_000  # bytes that a pair of sockets holds in any case


class _Control:
    """The control of a launch with two workers; notes what is requested."""

    def __init__(self):
        self.requests = []

    def snapshot(self):
        return Snapshot(WorkerState.HEALTHY, 0, 0, (0, 1), {0: 100, 1: 101})

    def take_events(self):
        return []

    def held(self):
        return {}

    def request(self, kind, reason):
        self.requests.append((kind, reason))

    def signal_workers(self, signum, ranks, reason):
        self.requests.append((signum, tuple(ranks), reason))


@cache
def _service():
    control = _Control()
    service = ControlService(PluginContext("job", "trainer", "a"), control, 1000, 0.0)
    service.stacks_page.stacks.ask = partial(_raise, TimeoutError("no stacks"))
    service.nodes.ask = dict
    return control, service


def _raise(error):
    raise error


def check(data):
    """Send a request, or an answer to a client; the result is valid, or a documented error."""
    choices = Choices(data)
    kind = choices.number(3)
    if kind == 0:
        _check_status(choices.rest[:_PIPE])
    elif kind == 1:
        _check_control(choices.rest[:_PIPE])
    else:
        _check_client(choices.rest)


def _exchange(data, answer):
    """Send data over a connection, and return what a server answers."""
    client, server = socket.socketpair(socket.AF_UNIX)
    with client, server:
        client.settimeout(10)
        server.settimeout(10)
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        answer(server)
        server.shutdown(socket.SHUT_WR)
        received = b""
        while part := client.recv(1 << 16):
            received += part
    return received


def _check_answer(received, *, is_json):
    """Check one answer; there may be several, one for each request of a connection."""
    if not received:
        return None
    head, blank, body = received.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.") and not blank:
        return None  # version 0.9 has no head
    first = head.split(b"\r\n")[0].split(b" ", 2)
    if len(first) < 2 or not first[1].isdigit() or not 100 <= int(first[1]) < 600:
        raise Finding(f"an answer {received[:300]!r}")
    if is_json and first[1] != b"100" and body:
        json.JSONDecoder().raw_decode(body.decode())
    return int(first[1])


def _check_status(data):
    received = _exchange(data, lambda server: status_requests.answer(server, _PAGES))
    _check_answer(received, is_json=False)


def _check_control(data):
    control, service = _service()
    control.requests.clear()

    def answer(server):
        control_requests.serve(server, lambda request: service.answer(request, 0))

    code = _check_answer(_exchange(data, answer), is_json=True)
    if len(control.requests) > 1:
        raise Finding(f"one connection, and {control.requests}")
    for request in control.requests:
        if code not in (200, None):
            raise Finding(f"an answer {code}, and {request}")
        check_message(request[-1], 500)
        if isinstance(request[0], signal.Signals):
            if not set(request[1]) <= {0, 1}:
                raise Finding(f"signals to {request[1]}")
        elif not isinstance(request[0], RequestKind):
            raise Finding(f"{request}")


def _check_client(data):
    try:
        status, response = _read(data)
        found = _check(status, response)
    except ClientError:
        return
    if not isinstance(found, dict):
        raise Finding(f"an answer {found!r}")
