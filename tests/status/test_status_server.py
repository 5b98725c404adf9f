"""The server, with real requests on loopback."""

from __future__ import annotations

import contextlib
import errno
import http.client
import os
import select
import socket
import threading

import pytest
from plaunch_status.address import listen
from plaunch_status.page import Page, health_page
from plaunch_status.server import StatusServer

from helpers.waiting import wait_until

LONG = 30.0  # seconds; nothing here should ever take as long


@contextlib.contextmanager
def served(pages=None, host="", **settings):
    server = StatusServer(
        listen(host, 0, "here"), pages or {"/": lambda: Page("hello")}, **settings
    )
    server.start()
    try:
        yield server
    finally:
        server.stop()


def ask(server, path="/", method="GET"):
    connection = http.client.HTTPConnection(server.host, server.port, timeout=LONG)
    with contextlib.closing(connection):
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())


def connected(server):
    return socket.create_connection((server.host, server.port), timeout=LONG)


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("plaunch-status")]


def test_a_page():
    with served({"/a": lambda: Page("b", kind="x/y", status=299)}) as server:
        status, text, headers = ask(server, "/a?query=1")
    assert (status, text, headers["Content-Type"]) == (299, "b", "x/y")
    assert headers["Cache-Control"] == "no-store"
    assert "Python" not in headers["Server"]


def test_no_such_page():
    with served({"/b": lambda: Page("b"), "/a": lambda: Page("a")}) as server:
        status, text, _ = ask(server, "/c")
    assert status == 404
    assert "/a /b" in text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_pages_are_only_read(method):
    made = []
    with served({"/": lambda: made.append(1) or Page("a")}) as server:
        status, text, headers = ask(server, "/", method)
    assert (status, headers["Allow"]) == (405, "GET")
    assert bool(text) == (method != "HEAD")
    assert not made


def test_a_page_that_cannot_be_created_does_not_break_the_server(caplog):
    with served({"/": lambda: 1 / 0, "/a": lambda: Page("a")}) as server:
        status, text, _ = ask(server)
        assert status == 500
        assert "ZeroDivisionError" not in text
        assert ask(server, "/a")[:2] == (200, "a")
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
def test_ipv6():
    with served(host="::1") as server:
        assert server.url == f"http://[::1]:{server.port}"
        assert ask(server)[1] == "hello"


def test_no_thread_is_left_and_the_port_is_free_again():
    with served() as server:
        assert ask(server)[0] == 200
        assert threads()
    wait_until(lambda: not threads(), "no thread is left")
    server.stop()
    with socket.create_server(("127.0.0.1", server.port)):
        pass


def test_the_server_is_idle_without_requests():
    with served() as server:
        assert server._pause() is None  # it waits without an end
        ask(server)
        wait_until(lambda: not server._ends, "nobody asks")
        assert server._pause() is None


def test_threads_stop_for_a_fork_and_requests_wait():
    with served() as server:
        assert ask(server)[0] == 200
        server.rest()
        assert not threads()
        with connected(server) as asking:
            asking.sendall(b"GET / HTTP/1.0\r\n\r\n")
            server.start()
            assert b"hello" in b"".join(iter(lambda: asking.recv(999), b""))
        server.rest()
        server.rest()


def test_a_slow_client_is_disconnected():
    with served(timeout=0.2) as server, connected(server) as slow:
        # One byte after the other: each arrives in time, the request never does.
        for _ in range(10_000):
            try:
                slow.sendall(b"G")
            except OSError:
                break
            if select.select([slow], [], [], 0.01)[0] and not slow.recv(99):
                break
        else:
            pytest.fail("it was never cut off")
        wait_until(lambda: len(threads()) == 1, "one thread is left")


def test_the_oldest_connection_is_closed_if_there_are_too_many():
    with served(most=2, timeout=LONG) as server, contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connected(server)) for _ in range(2)]
        wait_until(lambda: len(server._ends) == 2, "two ask")
        assert ask(server)[1] == "hello"
        assert slow[0].recv(99) == b""
        slow[1].sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert b"hello" in b"".join(iter(lambda: slow[1].recv(999), b""))


def test_a_client_that_disconnects_does_not_break_the_server():
    with served({"/": lambda: Page("x" * (16 << 20))}) as server:
        for _ in range(5):
            with connected(server) as rude:
                rude.sendall(b"GET / HTTP/1.0\r\n\r\n")
        wait_until(lambda: len(threads()) == 1, "one thread is left")
        assert len(ask(server)[1]) == 16 << 20


@pytest.mark.parametrize("text", [b"\r\n\r\n", b"\x00\xff\r\n\r\n", b"GET\r\n\r\n", b"x" * 70_000])
def test_invalid_requests(text):
    with served(timeout=1.0) as server:
        with connected(server) as odd:
            with contextlib.suppress(OSError):
                odd.sendall(text)
                odd.shutdown(socket.SHUT_WR)
                while odd.recv(999):
                    pass
        assert ask(server)[1] == "hello"


def test_no_descriptors_left_is_not_a_busy_loop():
    asked = []

    class Listener:
        def __init__(self, listener):
            self.listener = listener
            self.getsockname, self.close = listener.getsockname, listener.close
            self.fileno = listener.fileno

        def accept(self):
            asked.append(1)
            if len(asked) == 1:
                raise OSError(errno.EMFILE, "too many")
            return self.listener.accept()

    listener = Listener(listen("", 0, "here"))
    server = StatusServer(listener, {"/": lambda: Page("hello")}, accept_pause=0.05)
    server.start()
    try:
        assert ask(server)[1] == "hello"
    finally:
        server.stop()
    assert len(asked) == 2


def test_stopping_does_not_wait_for_a_client_for_long():
    with served(timeout=LONG) as server:
        slow = connected(server)
        wait_until(lambda: server._ends, "somebody asks")
        server.stop()
        assert not threads()
        slow.close()


def test_a_server_that_never_started_frees_the_port():
    server = StatusServer(listen("", 0, "here"), {})
    server.stop()
    with socket.create_server(("127.0.0.1", server.port)):
        pass


def test_the_health_page():
    assert health_page(0, 90) == Page("ok\n")
    sick = health_page(95.4, 90)
    assert sick.status == 503
    assert "95 s" in sick.text
    assert "90 s" in sick.text


def test_programs_do_not_inherit_anything():
    before = {fd for fd in range(256) if _is_inheritable(fd)}
    with served():
        assert {fd for fd in range(256) if _is_inheritable(fd)} == before


def _is_inheritable(fd):
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False
