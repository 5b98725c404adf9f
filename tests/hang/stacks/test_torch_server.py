"""Finding and querying torch's own server in a worker."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time

import pytest
from plaunch_hang.stacks import ProcessStacks, group, take, taking, torch_server
from plaunch_hang.stacks.files import write
from plaunch_hang.stacks.torch_server import describe_last_operation, format_operations

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

        def start(*words, name="s", found=True):
            path = f"{folder}/{name}"
            os.makedirs(os.path.dirname(path), exist_ok=True)
            variable = {"TORCH_WORKER_SERVER_SOCKET": path} if found else {}
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


def test_a_process_that_inherited_the_variable_has_no_server(start, monkeypatch):
    _, path = start()
    environ = f"{torch_server.VARIABLE}={path}".encode()
    monkeypatch.setattr(torch_server, "read_environ", lambda pid, proc: environ)
    assert torch_server.find_servers({os.getpid()}) == {}


def test_a_forked_worker_is_found_by_the_folder_that_plaunch_chose(start):
    """Its variables are not in /proc."""
    pid, path = start(name=f"{torch_server.FOLDER}abc/0.0.sock", found=False)
    assert torch_server.find_servers({pid}) == {pid: path}


def test_a_socket_without_a_listener_is_not_queried(start, tmp_path, monkeypatch):
    environ = f"{torch_server.VARIABLE}={tmp_path}/none".encode()
    monkeypatch.setattr(torch_server, "read_environ", lambda pid, proc: environ)
    assert torch_server.find_servers({os.getpid()}) == {}


def test_the_answers_of_a_server(start):
    _, path = start()
    assert torch_server.ask(path, soon()) == {
        "fr_trace_json": '{"entries": []}',
        "dump_traceback": "x" * 5000,
    }


def test_answers_that_are_too_long_are_left_out(start):
    _, path = start()
    assert torch_server.ask(path, soon(), most=2000) == {"fr_trace_json": '{"entries": []}'}


@pytest.mark.parametrize("fault", ["silent", "broken"])
def test_a_server_that_does_not_answer_takes_little_time(start, fault):
    _, path = start(fault)
    began = time.monotonic()
    assert torch_server.ask(path, soon()) == {}
    assert time.monotonic() - began < 20


def test_answers_are_included_in_the_stacks(start, tmp_path, monkeypatch):
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
    found = (tmp_path / "stacks" / "rank_3.txt").read_text()
    assert "torch's server in it has answered: fr_trace_json, dump_traceback" in found


def recorded(**entry):
    return json.dumps({"entries": [{}, entry]})


NAMED = {"profiling_name": "nccl:send", "collective_seq_id": 3, "p2p_seq_id": 9}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (recorded(**NAMED, process_group=["0", "tp"]), "nccl:send, number 3 in tp"),
        (recorded(**NAMED, process_group=["0", ""]), "nccl:send, number 3 in 0"),
        (recorded(**NAMED, is_p2p=True, process_group=["0"]), "nccl:send, number 9 in 0"),
        (recorded(**NAMED), ""),
        ('{"entries": []}', ""),
        ('{"entries": [3]}', ""),
        ("[]", ""),
        ("", ""),
    ],
)
def test_the_last_operation(text, said):
    answers = [("dump_traceback", "x"), ("fr_trace_json", text)]
    assert describe_last_operation(answers) == said


def test_last_operations_are_in_the_summary(tmp_path):
    """Ranks without a recorded operation are left out."""
    texts = {0: recorded(**NAMED, process_group=["tp"]), 1: "", 3: '{"entries": []}'}
    texts[2] = texts[4] = texts[0].replace("send", "recv")
    stacks = {
        rank: ProcessStacks(rank, torch_answers=(("fr_trace_json", text),))
        for rank, text in texts.items()
    }
    write(str(tmp_path / "stacks"), stacks, group({"a": stacks}))
    assert (tmp_path / "stacks" / "summary.txt").read_text().splitlines()[-3:] == [
        "last operations in torch's flight recorder:",
        "1 rank: 0 nccl:send, number 3 in tp",
        "2 ranks: 2, 4 nccl:recv, number 3 in tp",
    ]


def test_very_many_operations_are_counted():
    lines = format_operations({f"send {number}": (number,) for number in range(25)})
    assert lines[1] == "1 rank: 0 send 0"
    assert lines[20:] == ["1 rank: 19 send 19", "and 5 more operations"]
