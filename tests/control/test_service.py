"""The service of a launch and its permissions, over real sockets."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from threading import Event

import pytest
from plaunch.agent import RequestKind
from plaunch.errors import ThreadStartError
from plaunch_control import answers
from plaunch_control.client import ClientError, ForeignError, PendingRequest, RefusedError, ask
from plaunch_control.folder import sockets
from plaunch_control.requests import MOST_BODY
from plaunch_network import ConnectionServer

from helpers.faults import raising
from helpers.pretended_launches import LONG, PretendedLaunch
from helpers.processes import forks_beside_threads
from helpers.waiting import wait_until

NOBODY = 65534


@pytest.fixture
def launch(runtime_dir, monkeypatch):
    with PretendedLaunch(runtime_dir, monkeypatch) as launch:
        yield launch


def asked(launch, page, given=None):
    return ask(launch.path, page, given, patience=LONG)


def refused(launch, page, given=None):
    with pytest.raises(RefusedError) as caught:
        asked(launch, page, given)
    return caught.value.status, str(caught.value)


def test_the_index_lists_versions_and_pages(launch):
    received = asked(launch, "/v1")
    assert received["versions"] == [1]
    assert received["pages"]["/v1/status"] == ["GET"]
    assert received["pages"]["/v1/stop"] == ["POST"]


def test_a_status_shows_the_command_without_secrets(launch, monkeypatch):
    words = [
        "plaunch",
        "train.py",
        "--accessToken",
        "sword fish",
        "--url=https://h?token=swordfish",
    ]
    monkeypatch.setattr(answers, "read_command", lambda _: words)
    received = asked(launch, "/v1/status")["command"]
    assert received == [*words[:3], "<withheld>", "--url=https://h?token=<withheld>"]


def test_an_unknown_version_gets_the_known_ones(launch):
    status, _, body = launch.send(b"GET /v2/status HTTP/1.0\r\n\r\n").partition(b"\r\n\r\n")
    assert b" 404 " in status
    assert json.loads(body)["versions"] == [1]
    assert "/v1/status" in json.loads(body)["pages"]
    assert refused(launch, "/v1/nothing")[0] == 404


@pytest.mark.parametrize(
    ("path", "given", "status"),
    [
        ("/v1/status", {}, 405),
        ("/v1/stop", None, 405),
        ("/v1/stop", {"reason": 7}, 400),
        ("/v1/signal", {}, 400),
        ("/v1/signal", {"signal": "SIGNOTHING"}, 400),
        ("/v1/signal", {"signal": 999}, 400),
        ("/v1/signal", {"signal": "SIGUSR1", "ranks": "all"}, 400),
        ("/v1/signal", {"signal": "SIGUSR1", "ranks": "0-3"}, 409),
        ("/v1/events?after=x", None, 400),
        ("/v1/events?after=1.5", None, 400),
        ("/v1/events?wait=inf", None, 400),
        ("/v1/events?wait=nan", None, 400),
    ],
)
def test_impossible_requests_are_refused_in_one_line(launch, path, given, status):
    received, text = refused(launch, path, given)
    assert received == status
    assert text
    assert "\n" not in text
    assert not launch.control.asked


@pytest.mark.parametrize("body", [b"[1]", b"{", b"\xff", b"[" * 60000, b"7"])
def test_a_body_that_is_not_an_object_is_refused(launch, body):
    head = f"POST /v1/stop HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    assert b" 400 " in launch.send(head + body).partition(b"\r\n")[0]
    assert not launch.control.asked


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (["Content-Length: -1"], 400),
        (["Content-Length: +2"], 400),
        (["Content-Length: 1_0"], 400),
        (["Content-Length: 0x2"], 400),
        (["Content-Length: 2.0"], 400),
        (["Content-Length:"], 400),
        (["Content-Length: \u00a02"], 400),
        (["Content-Length: \u00b2"], 400),
        (["Content-Length: 2, 2"], 400),
        (["Content-Length: 2", "Content-Length: 2"], 400),
        (["Content-Length: 2", "Content-Length: 99"], 400),
        (["Content-Length: 3"], 400),  # more than comes
        (["Transfer-Encoding: chunked"], 411),
        ([f"Content-Length: {MOST_BODY + 1}"], 413),
        (["Content-Length: 0000000009999999999"], 413),
        (["Content-Length: 000000000" + "9" * 4000], 413),
        (["Content-Length: " + "9" * 60000], 413),
    ],
    ids=lambda value: "; ".join(value)[:40] if isinstance(value, list) else None,
)
def test_an_invalid_length_is_refused(launch, headers, status):
    head = "\r\n".join(["POST /v1/stop HTTP/1.0", *headers, "", ""]).encode("latin-1", "replace")
    answer = launch.send(head + b"{}")
    assert f" {status} ".encode() in answer.partition(b"\r\n")[0]
    assert not launch.control.asked


@pytest.mark.parametrize(
    "headers", ["Content-Length: 0000000002 \r\n", "content-length: 2\r\n", ""]
)
def test_a_valid_length(launch, headers):
    answer = launch.send(f"POST /v1/stop HTTP/1.0\r\n{headers}\r\n{{}}".encode())
    assert b" 200 " in answer.partition(b"\r\n")[0]
    assert len(launch.control.asked) == 1


GARBAGE = {
    "binary": os.urandom(500).replace(b"\n", b"") + b"\n",
    "half a line": b"GET /v1/sta",
    "quotes": b'GET "\\\\" HTTP/1.0 "\\\r\n\r\n',
    "no HTTP": b"status please\r\n\r\n",
    "a line without end": b"GET /" + b"x" * 70000 + b" HTTP/1.0\r\n\r\n",
    "too many headers": b"GET /v1 HTTP/1.0\r\n" + b"a: b\r\n" * 500 + b"\r\n",
    "a body too large": b"POST /v1/stop HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % (MOST_BODY + 1),
    "a body of a length without end": b"POST /v1/stop HTTP/1.0\r\nContent-Length: 9%s\r\n\r\n"
    % (b"9" * 5000),
    "half a body": b'POST /v1/stop HTTP/1.0\r\nContent-Length: 20\r\n\r\n{"reason"',
    "another method": b"DELETE /v1/stop HTTP/1.0\r\n\r\n",
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
def test_invalid_bytes_do_not_break_the_service(launch, data):
    answer = launch.send(data)
    if answer:  # to what has no version, it has no head
        received = json.loads(answer.rpartition(b"\r\n\r\n")[2])
        assert received["error"]
    assert not launch.control.asked
    assert asked(launch, "/v1/status")["run_id"] == "job"


def test_slow_clients_do_not_block_others(launch):
    slow = [launch.connect() for _ in range(40)]  # more than are served at a time
    try:
        for one in slow[:20]:
            one.sendall(b"GET /v1/st")
        assert asked(launch, "/v1/status")["run_id"] == "job"
    finally:
        for one in slow:
            one.close()


def test_clients_that_disconnect_do_not_break_the_service(launch):
    with launch.connect() as asking:
        asking.sendall(b"GET /v1/events?wait=2 HTTP/1.0\r\n\r\n")
    assert asked(launch, "/v1/status")["run_id"] == "job"


def test_an_exception_in_the_launcher_is_reported_and_logged(launch, monkeypatch, caplog):
    monkeypatch.setattr(launch.control, "snapshot", lambda: 1 / 0)
    status, text = refused(launch, "/v1/status")
    assert (status, text) == (500, "the request failed in the launcher; see its log")
    assert "a request of plaunchctl for '/v1/status' failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


# --- GET ------------------------------------------------------------------------------------------


def test_a_blocked_loop_is_reported(launch):
    assert asked(launch, "/v1/status")["alive"] is True
    launch.control.set(overdue=7.5)
    received = asked(launch, "/v1/status")
    assert (received["alive"], received["silent_seconds"]) == (False, 7.5)
    received = asked(launch, "/v1/stop", {})
    assert (received["alive"], received["silent_seconds"]) == (False, 7.5)


def test_events_are_numbered(launch):
    for number in range(3):
        launch.control.tell("worker.noise", number=number)
    received = asked(launch, "/v1/events")
    assert [event["metadata"]["number"] for event in received["events"]] == [0, 1, 2]
    assert (received["next"], received["missed"], received["over"]) == (3, 0, False)
    assert asked(launch, "/v1/events?after=3")["events"] == []
    assert len(asked(launch, "/v1/events?after=-2")["events"]) == 2
    assert len(asked(launch, "/v1/events?after=-9")["events"]) == 3
    assert asked(launch, "/v1/events?after=99")["next"] == 3


def test_a_request_waits_for_the_end(launch):
    received = asked(launch, "/v1/end")
    assert received == {"over": False, "outcome": None, "exit_code": None, "reason": None}
    looks = launch.control.looks
    request = PendingRequest(launch.path, "/v1/end?wait=2", patience=LONG)
    wait_until(lambda: launch.control.looks > looks, "it waits")
    launch.control.tell("launcher.finished", outcome="failed", exit_code=7, reason="bad luck")
    launch.extension.stop(None)
    received = {"over": True, "outcome": "failed", "exit_code": 7, "reason": "bad luck"}
    assert request.answer() == received


def test_log_files_are_listed_by_rank(launch):
    for local_rank, rank in enumerate((4, 5)):
        launch.control.tell("worker.started", local_rank=local_rank, global_rank=rank, worker_pid=7)
    received = asked(launch, "/v1/logs")
    assert [
        (file["global_rank"], file["stdout"], file["stderr"]) for file in received["files"]
    ] == [
        (4, os.path.abspath("out"), None),
        (5, None, None),
    ]


# --- POST -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", RequestKind)
def test_a_request_has_a_reason_of_one_line(launch, kind):
    received = asked(launch, f"/v1/{kind.value}", {"reason": "it\n is " + "late" * 99})
    assert received["asked"] == kind.value
    asked(launch, f"/v1/{kind.value}", {"reason": None})
    (first, reason), second = launch.control.asked
    assert first == kind
    by = f"by uid {os.geteuid()}: "
    assert reason.startswith(f"{by}it is late")
    assert len(reason.removeprefix(by)) == 200
    assert second == (kind, f"{by}no reason is given")


@pytest.mark.parametrize(
    ("is_job_wide", "nodes", "is_refused"),
    [(True, 2, False), (False, 1, False), (False, 2, True), (False, None, True)],
)
def test_all_nodes_stops_all_or_is_refused(launch, is_job_wide, nodes, is_refused):
    launch.control.set(is_job_wide=is_job_wide)
    if nodes is not None:
        launch.control.tell("launcher.started", max_nodes=nodes)
    if is_refused:
        status, text = refused(launch, "/v1/stop", {"all_nodes": True})
        assert status == 409
        assert "do not know each other" in text
        assert not launch.control.asked
    else:
        received = asked(launch, "/v1/stop", {"all_nodes": True})
        assert received["nodes"] == ("all" if is_job_wide else "this")
        assert launch.control.asked


@pytest.mark.parametrize("name", ["SIGUSR1", "usr1", "10", 10])
def test_a_signal_goes_to_the_ranks_of_this_node(launch, name):
    assert asked(launch, "/v1/signal", {"signal": name})["ranks"] == "4-5"
    assert asked(launch, "/v1/signal", {"signal": name, "ranks": "0-4"})["ranks"] == "4"
    why = f"plaunchctl signal USR1 by uid {os.geteuid()}"
    assert launch.control.asked == [(signal.SIGUSR1, [4, 5], why), (signal.SIGUSR1, [4], why)]


def test_a_signal_without_workers_is_refused(launch):
    launch.control.set(pids={})
    assert "no worker runs now" in refused(launch, "/v1/signal", {"signal": "SIGUSR1"})[1]


@pytest.mark.parametrize(
    ("page", "given"), [("stop", {}), ("restart", {}), ("leave", {}), ("signal", {"signal": 10})]
)
def test_a_post_of_a_closed_connection_is_not_carried_out(launch, caplog, page, given):
    """The client has reported that the request is withdrawn."""
    caplog.set_level("INFO", "plaunch")
    is_asked, may_answer, snapshot = Event(), Event(), launch.control.snapshot

    def hold():
        is_asked.set()
        assert may_answer.wait(LONG)
        return snapshot()

    launch.control.snapshot = hold
    request = PendingRequest(launch.path, f"/v1/{page}", given)
    assert is_asked.wait(LONG)
    request.close()
    may_answer.set()
    said = f"a request for '/v1/{page}' is not carried out: its connection was closed"
    wait_until(lambda: said in caplog.text, "the message")
    assert not launch.control.asked


def test_a_post_with_a_half_closed_connection_is_carried_out(launch):
    """`nc -N` closes its half of the connection."""
    assert b" 200 " in launch.send(b"POST /v1/stop HTTP/1.0\r\n\r\n")
    assert launch.control.asked


@pytest.mark.parametrize("kind", RequestKind)
def test_a_reason_is_made_printable(launch, kind):
    evil = "\x1b]0;title\x07\x1b[31mred\x9b2J\u202eback\r\nnext\0"
    received = asked(launch, f"/v1/{kind.value}", {"reason": evil})["reason"]
    assert received == r"\x1b]0;title\x07\x1b[31mred\x9b2J\u202eback next\x00"
    assert launch.control.asked == [(kind, f"by uid {os.geteuid()}: {received}")]
    assert len(asked(launch, f"/v1/{kind.value}", {"reason": "\x1b" * 500})["reason"]) == 200


# --- permissions ----------------------------------------------------------------------------------

ASK = """\
import os, sys
from plaunch_control.client import ClientError, ask
os.setgroups([])
os.setgid({user})
os.setuid({user})
try:
    print(ask(sys.argv[1], "/v1/stop", {{}}))
except ClientError as error:
    print(type(error).__name__, error)
"""


def ask_as(user, launch):
    command = [sys.executable, "-c", ASK.format(user=user), launch.path]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.needs("root")
def test_another_user_is_refused_by_folder_and_service(launch):
    assert ask_as(NOBODY, launch) == "ForeignError it belongs to another user\n"
    # The launch checks the user too, in case the folder was made accessible.
    os.chmod(launch.folder.parent, 0o755)
    os.chmod(launch.folder, 0o755)
    os.chmod(launch.path, 0o777)
    received = ask_as(NOBODY, launch)
    assert received == f"ForeignError this launch belongs to user 0, and you are user {NOBODY}\n"
    assert not launch.control.asked


def test_the_user_is_the_peers_and_root_is_permitted(launch, monkeypatch):
    for user, may in ((os.geteuid(), True), (0, True), (NOBODY, False)):
        monkeypatch.setattr(answers, "peer_user", lambda connection, user=user: user)
        if may:
            asked(launch, "/v1/status")
        else:
            with pytest.raises(ForeignError, match=f"you are user {NOBODY}"):
                asked(launch, "/v1/status")


# --- the socket -----------------------------------------------------------------------------------


def test_the_service_is_imported_at_the_first_request(runtime_dir):
    program = (
        "import os, sys, types\n"
        "from plaunch.plugin import PluginContext\n"
        "from plaunch_control.plugin import ControlExtension\n"
        "extension = ControlExtension(PluginContext('job', 'role', 'host'))\n"
        "extension.start(types.SimpleNamespace(listen=lambda *given: None))\n"
        "while not os.path.isdir(os.environ['PLAUNCH_RUNTIME_DIR']): pass\n"
        "while not os.listdir(os.environ['PLAUNCH_RUNTIME_DIR']): pass\n"
        "print(len(os.listdir(os.environ['PLAUNCH_RUNTIME_DIR'])))\n"
        "extension.stop(None)\n"
        "print(len(os.listdir(os.environ['PLAUNCH_RUNTIME_DIR'])))\n"
        "late = {'http.server', 'json', 'plaunch_control.answers', 'plaunch_hang'}\n"
        "print(late & set(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PLAUNCH_RUNTIME_DIR": str(runtime_dir)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\n")[-4:] == ["1", "0", "set()", ""]


def test_without_a_folder_the_launch_continues(runtime_dir, monkeypatch, caplog):
    caplog.set_level("DEBUG", "plaunch")
    runtime_dir.mkdir(0o755)
    os.chmod(runtime_dir, 0o755)
    launch = PretendedLaunch(runtime_dir, monkeypatch)
    launch.extension.start(launch.control)
    wait_until(lambda: "plaunchctl cannot find this launch" in caplog.text, "a word")
    launch.extension.rest()
    launch.extension.release()
    launch.extension.stop(None)
    assert "mode 0755" in caplog.text


def test_without_a_thread_the_launch_continues(runtime_dir, monkeypatch, caplog):
    caplog.set_level("DEBUG", "plaunch")
    launch = PretendedLaunch(runtime_dir, monkeypatch)
    refuse = raising(ThreadStartError("no more threads"))
    monkeypatch.setattr(ConnectionServer, "start", refuse)
    launch.extension.start(launch.control)
    wait_until(lambda: "plaunchctl cannot reach this launch: no more" in caplog.text, "a word")
    wait_until(lambda: list(runtime_dir.iterdir()) == [], "no socket")
    launch.extension.stop(None)


@forks_beside_threads
def test_a_forked_worker_does_not_inherit_the_socket(launch):
    """Workers may be forked from the launcher."""
    launch.extension.rest()
    own, remote = socket.socketpair()
    child = os.fork()
    if not child:
        remote.recv(1)
        os._exit(0)
    try:
        launch.extension.release()
        assert asked(launch, "/v1/status")["agent_pid"] == os.getpid()
        launch.extension.stop(None)
        assert not [*sockets(str(launch.folder))]
        with pytest.raises(ClientError, match="it has ended"):
            asked(launch, "/v1/status")
    finally:
        own.send(b"x")
        os.waitpid(child, 0)
        own.close()
        remote.close()
