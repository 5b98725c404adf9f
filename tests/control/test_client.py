"""The client of a launch socket, with good and bad listeners."""

from __future__ import annotations

import os
import socket
import threading

import pytest
from plaunch_control import client
from plaunch_control.cli import main
from plaunch_control.client import (
    ClientError,
    GoneError,
    PendingRequest,
    RefusedError,
    SilentError,
    WithdrawnError,
    ask,
)
from plaunch_control.event_buffer import KEPT
from plaunch_control.launches import Launch, NoSuchJobError, choose

from helpers.pretended_launches import LONG, PretendedLaunch


@pytest.fixture
def listening(runtime_dir):
    """A listening socket, and its path."""
    runtime_dir.mkdir(0o700)
    path = str(runtime_dir / "job.1.abcdef")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.settimeout(LONG)
        listener.bind(path)
        listener.listen()
        yield path, listener


@pytest.fixture
def answering(listening):
    """Start a listener that answers a request with these bytes, or not at all."""
    path, listener = listening
    threads = []

    def answering(data):
        def answer():
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(data)

        if data is not None:
            threads.append(threading.Thread(target=answer))
            threads[0].start()
        return path

    yield answering
    for thread in threads:
        thread.join(LONG)


def test_a_launch_that_does_not_answer(answering):
    with pytest.raises(SilentError):
        ask(answering(None), "/v1/status", patience=0.05)


def test_a_post_that_is_not_answered_is_withdrawn(answering):
    with pytest.raises(WithdrawnError):
        ask(answering(None), "/v1/stop", {}, patience=0.05)


def test_an_answer_received_at_the_timeout_is_valid(listening):
    """The launch carries out a request that it has answered, so the client must report success."""
    path, listener = listening
    request = PendingRequest(path, "/v1/stop", {}, patience=0.2)
    with listener.accept()[0] as connection:
        connection.sendall(b'HTTP/1.0 200 OK\r\n\r\n{"asked": "stop"}')  # and it has no end
        assert request.answer() == {"asked": "stop"}
        with pytest.raises(BrokenPipeError):
            connection.sendall(b"more")


def test_an_incomplete_answer_is_not_an_answer(listening):
    path, listener = listening
    request = PendingRequest(path, "/v1/stop", {}, patience=0.05)
    with listener.accept()[0] as connection:
        connection.sendall(b'HTTP/1.0 200 OK\r\n\r\n{"asked": ')
        with pytest.raises(WithdrawnError):
            request.answer()
        with pytest.raises(BrokenPipeError):
            connection.sendall(b'"stop"}')


@pytest.mark.parametrize(
    ("data", "error", "said"),
    [
        (b"", GoneError, "it has ended"),
        (b"\0\1\2", ClientError, "is not one of plaunch"),
        (b"HTTP/1.0 200 OK\r\n\r\n", ClientError, "is not one of plaunch"),
        (b"HTTP/1.0 200 OK\r\n\r\n[1]", ClientError, "is not one of plaunch"),
        (b"HTTP/1.0 2x0 OK\r\n\r\n{}", ClientError, "is not one of plaunch"),
        (b'HTTP/1.0 200 OK\r\n\r\n{"cut": ', ClientError, "is not one of plaunch"),
        (b'HTTP/1.0 404 no\r\n\r\n{"versions": [2]}', RefusedError, "another version of plaunch"),
        (b'HTTP/1.0 409 no\r\n\r\n{"error": "never"}', RefusedError, "^never$"),
    ],
)
def test_invalid_answers(answering, data, error, said):
    with pytest.raises(error, match=said):
        ask(answering(data), "/v1/status", patience=LONG)


def test_an_answer_without_end(answering):
    with pytest.raises(ClientError, match="its answer is longer than"):
        ask(answering(b"x" * 2000), "/v1/status", patience=LONG, most_bytes=1000)


# --- which launch is meant ------------------------------------------------------------------------


@pytest.fixture
def three_launches(runtime_dir, monkeypatch):
    """Launches; the run id of one is a prefix of the others."""
    launches = [PretendedLaunch(runtime_dir, monkeypatch, name) for name in ("a", "ab", "abc")]
    for launch in launches:
        launch.__enter__()
    yield [
        Launch(one.path, name, True, 70 + at)
        for at, (one, name) in enumerate(zip(launches, ("a", "ab", "abc"), strict=True))
    ]
    for launch in launches:
        launch.__exit__()


def test_a_job_is_an_id_or_its_beginning_or_a_pid(three_launches):
    assert choose(three_launches, "ab") is three_launches[1]
    assert choose(three_launches, "abc") is three_launches[2]
    assert choose(three_launches[1:], "abc") is three_launches[2]
    assert choose(three_launches, "71") is three_launches[1]
    assert choose(three_launches[:1], None) is three_launches[0]
    with pytest.raises(NoSuchJobError, match=r"'a' matches several launches: ab \(pid 71\), abc"):
        choose(three_launches[1:], "a")
    with pytest.raises(NoSuchJobError, match="there are several launches: a "):
        choose(three_launches, None)
    with pytest.raises(
        NoSuchJobError, match=r"no running launch .* matches 'x'; running: a \(pid 70\), ab"
    ):
        choose(three_launches, "x")
    with pytest.raises(NoSuchJobError, match="no launch of this user runs on this host"):
        choose([], None)


def test_a_launch_that_was_killed_is_not_listed_as_running(three_launches, runtime_dir):
    dead = Launch(str(runtime_dir / "dead.71.sock"), "dead", True, 71)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(dead.path)
    found = "no running launch of this user on this host matches 'dead'; dead (pid 71) has ended"
    with pytest.raises(NoSuchJobError) as caught:
        choose([dead], "dead")
    assert str(caught.value) == found
    assert not os.path.exists(dead.path)
    with pytest.raises(NoSuchJobError) as caught:
        choose([dead, *three_launches], "dead")
    running = "running: a (pid 70), ab (pid 71), abc (pid 72)"
    assert str(caught.value) == f"{found}; {running}"


def test_a_truncated_id_is_found_by_the_full_one(three_launches):
    cut = Launch(three_launches[1].path, "ab", False, 71)
    assert choose([cut], "abcdef") is cut
    assert choose([cut], "a") is cut
    with pytest.raises(NoSuchJobError):
        choose([cut], "x")


# --- the command line -----------------------------------------------------------------------------


def test_without_launches(runtime_dir, monkeypatch, capsys):
    monkeypatch.setenv("PLAUNCH_RUNTIME_DIR", str(runtime_dir))
    assert main(["ps"]) == 0
    assert main(["ps", "--json"]) == 0
    assert main(["status"]) == 3
    out, err = capsys.readouterr()
    assert out == "no launch of this user was found on this host\n[]\n"
    assert err == "plaunchctl: no launch of this user runs on this host\n"


def test_a_folder_that_others_may_use_is_not_trusted(runtime_dir, monkeypatch, capsys):
    monkeypatch.setenv("PLAUNCH_RUNTIME_DIR", str(runtime_dir))
    runtime_dir.mkdir()
    runtime_dir.chmod(0o777)
    assert main(["ps"]) == 0
    assert "has the mode 0777; only its owner may use it" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [[], ["dance"], ["status", "--colour"], ["signal"], ["status", "--timeout=0"]]
)
def test_usage_errors(words, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert "usage: plaunchctl" in capsys.readouterr().err


def test_a_silent_launch_is_reported_in_one_line(answering, monkeypatch, capsys):
    path = answering(None)
    monkeypatch.setenv("PLAUNCH_RUNTIME_DIR", path.rpartition("/")[0])
    monkeypatch.setattr(client, "_left", lambda until: 0.05)
    assert main(["status", "job"]) == 4
    assert main(["stop", "job", "--timeout=1m30s"]) == 4
    assert main(["ps"]) == 0
    out, err = capsys.readouterr()
    silent = (
        "plaunchctl: job (pid 1) did not answer within {}: it is suspended, or gets no CPU time"
    )
    first, second = silent.format("10 s"), silent.format("90 s")
    assert err == f"{first}\n{second}; the request is withdrawn and will not be carried out\n"
    assert "no answer" in out


def test_answers_are_escaped_for_the_terminal(runtime_dir, monkeypatch, capsys):
    evil = "\x1b[31m\nred\x9b"
    with PretendedLaunch(runtime_dir, monkeypatch, run_id=evil) as launch:
        launch.control.tell("failure", message=f"it is {evil}", seconds=0.123456)
        launch.control.set(waits_for=evil)
        launch.control.tell("rendezvous.begun")
        for words in (["ps"], ["status"], ["events"], ["stop"], ["logs"], ["status", "no"]):
            main(words)
    out, err = capsys.readouterr()
    assert all(line.isprintable() for line in [*out.splitlines(), *err.splitlines()])
    assert r"waits for  \x1b[31m\nred\x9b" in out
    assert 'failure message="it is ' in out
    assert "seconds=0.123" in out


def test_a_launch_of_another_version_is_listed(answering, monkeypatch, capsys):
    path = answering(b'HTTP/1.0 404 no\r\n\r\n{"error": "no such page", "versions": [2]}')
    monkeypatch.setenv("PLAUNCH_RUNTIME_DIR", path.rpartition("/")[0])
    assert main(["ps"]) == 0
    row = capsys.readouterr().out.splitlines()[1]
    assert row.startswith("job     1    unknown")
    assert "the launch is of another version of plaunch (no such page)" in row


def test_dropped_events_are_reported(runtime_dir, monkeypatch, capsys):
    with PretendedLaunch(runtime_dir, monkeypatch) as launch:
        for number in range(KEPT + 3):
            launch.control.tell("worker.noise", number=number)
        assert main(["events"]) == 0
    out, err = capsys.readouterr()
    numbers = [line.rpartition("number=")[2] for line in out.splitlines()]
    assert numbers == [str(number) for number in range(3, KEPT + 3)]
    assert err == "plaunchctl: 3 older events were dropped\n"
