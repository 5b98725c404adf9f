"""Torch's own server in a worker: found, and asked in a bounded time."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time

import pytest
from plaunch_stacks import take, taking, torch_server
from plaunch_stacks.files import write

from helpers.programs import running_python

# A server that has the pages of torch's, and one that never answers.
SERVER = """
import http.server, os, socketserver, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    def address_string(self): return ""
    def log_message(self, *args): pass
    def do_GET(self): self.answer(b'["fr_trace_json", "dump_traceback", "ping"]')
    def do_POST(self):
        page = self.path.rpartition("/")[2]
        self.answer(b'{"entries": []}' if page == "fr_trace_json" else PAGES.encode())
    def answer(self, body):
        if "silent" in sys.argv: time.sleep(60)
        self.send_response(200 if "broken" not in sys.argv else 500)
        self.end_headers()
        self.wfile.write(body)
PAGES = "x" * 5000
class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer): daemon_threads = True
server = Server(sys.argv[1], Handler)
print(flush=True)
server.serve_forever()
"""


@pytest.fixture
def start():
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())

        def start(*words, name="s", told=True):
            path = f"{folder}/{name}"
            os.makedirs(os.path.dirname(path), exist_ok=True)
            variable = {"TORCH_WORKER_SERVER_SOCKET": path} if told else {}
            process = stack.enter_context(
                running_python("-c", SERVER, path, *words, env={**os.environ, **variable})
            )
            process.stdout.readline()
            return process.pid, path

        yield start


def soon():
    return time.monotonic() + 30


def test_a_server_is_found_by_the_variable_of_its_process(start):
    pid, path = start()
    assert torch_server.find_servers({pid, os.getpid()}) == {pid: path}
    assert torch_server.find_servers({os.getpid()}) == {}


def test_who_has_inherited_the_variable_has_no_server(start, monkeypatch):
    _, path = start()
    monkeypatch.setattr(torch_server, "_variable_of", lambda pid, proc: path)
    assert torch_server.find_servers({os.getpid()}) == {}


def test_a_forked_worker_is_found_by_the_folder_that_plaunch_chose(start):
    """It has its variables nowhere in /proc."""
    pid, path = start(name=f"{torch_server.FOLDER}abc/0.0.sock", told=False)
    assert torch_server.find_servers({pid}) == {pid: path}


def test_a_socket_that_is_nobodys_is_not_asked(start, tmp_path, monkeypatch):
    monkeypatch.setattr(torch_server, "_variable_of", lambda pid, proc: str(tmp_path / "none"))
    assert torch_server.find_servers({os.getpid()}) == {}


def test_what_it_answers(start):
    _, path = start()
    assert torch_server.ask(path, soon()) == {
        "fr_trace_json": '{"entries": []}',
        "dump_traceback": "x" * 5000,
    }


def test_what_is_too_much_is_left_out(start):
    _, path = start()
    assert torch_server.ask(path, soon(), most=2000) == {"fr_trace_json": '{"entries": []}'}


@pytest.mark.parametrize("fault", ["silent", "broken"])
def test_one_that_does_not_answer_costs_little(start, fault):
    _, path = start(fault)
    began = time.monotonic()
    assert torch_server.ask(path, soon()) == {}
    assert time.monotonic() - began < 20


def test_its_answers_are_beside_the_stacks(start, tmp_path, monkeypatch):
    def refuse():
        raise FileNotFoundError("py-spy is not installed")

    monkeypatch.setattr(taking, "find_py_spy", refuse)
    pid, _ = start()
    stacks = take({3: pid})
    write(str(tmp_path / "stacks"), stacks)
    assert sorted(path.name for path in (tmp_path / "stacks").iterdir()) == [
        "rank_3.dump_traceback.txt",
        "rank_3.fr_trace.json",
        "rank_3.txt",
    ]
    assert (tmp_path / "stacks" / "rank_3.fr_trace.json").read_text() == '{"entries": []}\n'
    told = (tmp_path / "stacks" / "rank_3.txt").read_text()
    assert "torch's server in it has answered: fr_trace_json, dump_traceback" in told
