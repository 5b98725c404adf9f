"""`ConnectedNode` is one node of a job, as the command sees it."""

import os

import pytest
from plaunch import __version__
from plaunch_engines.agents import AgentState, ConnectedNode
from plaunch_engines.records import VERSION, encode

from helpers.clock import Clock
from helpers.played_handles import PlayedHandle

HELLO = {
    "kind": "hello", "protocol": VERSION, "version": __version__, "python": "3.12.1",
    "host": "node1", "pid": 17, "has_folder": True, "script": "9 bytes", "port": 20000,
    "addresses": ["192.0.2.7"], "client": "",
}  # fmt: skip
RUNNING = {
    "kind": "running", "round": 0, "attempt": 0, "nodes": 2, "workers": 2, "is_job_wide": True,
}  # fmt: skip
END = {"kind": "end", "code": 0, "has_succeeded": True, "verdict": "succeeded"}


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def handle():
    return PlayedHandle()


@pytest.fixture
def node(handle, clock):
    node = ConnectedNode(0, handle, 60.0, clock)
    yield node
    node.close()


@pytest.fixture
def read(node, handle):
    """Write bytes as the agent; return what the node makes of them."""

    def read(*, out=b"", err=b""):
        os.write(handle.out, out)
        os.write(handle.err, err)
        return [each for fd in node.fds() for each in node.read(fd)]

    return read


@pytest.fixture
def report(read, node, handle):
    """Report a record of a configured agent."""

    def report(**record):
        if node.state is AgentState.STARTING:
            read(err=encode("", **HELLO))
            node.configure({"arguments": []})
        return read(err=encode(handle.settings["nonce"], **record))

    return report


def test_a_prompt_of_a_worker_is_yielded_while_the_agent_runs(node, handle, clock, read, report):
    def update(**options):
        return [*node.update(hold=lambda is_error: 0.1, **options)]

    os.write(handle.out, b"login: ")
    report(**RUNNING)
    clock.now += 1
    assert update(is_read=True) == []
    assert read(out=b"(Pdb) ") == []
    clock.now += 1
    assert update(is_read=False) == []
    assert update(is_read=True) == [(False, b"(Pdb) ")]
    assert read(out=b"c\n") == [(False, b"c\n")]


def test_output_that_may_not_be_read_yet_is_not_lost(node, handle, clock):
    handle.code = 0
    [*node.update(is_read=True)]
    for _ in range(5):
        clock.now += 10.0
        [*node.update(is_read=False)]  # a slow reader
    clock.now += 1.0
    [*node.update(is_read=True)]
    assert node.state is not AgentState.ENDED
    assert node.fds() == [handle.stdout, handle.stderr]
    clock.now += 1.5
    [*node.update(is_read=True)]
    assert node.state is AgentState.ENDED


def test_output_that_was_not_read_in_time_is_not_lost(report, read, node, handle, clock):
    """The command was suspended, or its machine was busy, while the agent ended."""
    report(**RUNNING)
    handle.code = 0
    [*node.update(is_read=True)]
    os.write(handle.out, b"trained\nsaved")
    clock.now += 100.0
    assert [*node.update(is_read=True)] == []
    assert node.state is not AgentState.ENDED
    assert read() == [(False, b"trained\n")]
    clock.now += 1.0
    assert [*node.update(is_read=True)] == []
    clock.now += 1.5  # a process that has left the job holds the stream open
    assert [*node.update(is_read=True)] == [(False, b"saved")]
    assert node.state is AgentState.ENDED


def test_what_a_login_shell_writes_is_not_shown(read, node, handle):
    """Also if it has not ended its last line, which would be glued to the first one of a worker."""
    assert read(out=b"Welcome to\nnode1 ", err=b"a banner" + encode("", **HELLO)) == []
    assert node.state is AgentState.READY
    os.write(handle.out, b"and goodbye")
    node.configure({"arguments": []})
    assert read(out=b"trained\n", err=b"careful\n") == [(False, b"trained\n"), (True, b"careful\n")]


def test_each_agent_has_a_nonce(handle, node):
    other = PlayedHandle()
    another = ConnectedNode(1, other, 60.0, Clock())
    for each in (node, another):
        each.configure({"arguments": ["train.py"]})
    assert handle.settings["arguments"] == ["train.py"]
    assert len({handle.settings["nonce"], other.settings["nonce"]}) == 2
    assert len(handle.settings["nonce"]) == 32
    another.close()


@pytest.mark.parametrize("nonce", ["", "0" * 32])
def test_what_a_worker_writes_is_no_record(report, read, node, nonce):
    report(**RUNNING)
    line = encode(nonce, **END)
    assert read(out=line, err=line) == [(False, line), (True, line)]
    assert node.code is None


def test_an_invalid_record_is_a_failure_of_its_node(report, node, handle):
    report(**RUNNING)
    report(**{**END, "code": "0"})
    assert handle.is_stopped
    assert node.problem(None) == (
        "node0: its agent has sent an invalid record: code of end is '0', not a whole number from "
        "0 to 255"
    )
    report(**END)  # nothing that follows counts
    assert node.code is None


def test_an_invalid_hello_is_why_the_job_cannot_start_there(read, node):
    read(err=encode("", **{**HELLO, "port": "20000"}))
    assert "node0: its agent has sent an invalid record: port of hello is '20000'" in node.problem(
        None
    )


def test_the_text_of_a_failure_may_be_long_but_not_endless(report, node):
    rest = {"code": 3, "is_first": True, "is_of_workers": True, "is_consequence": False}
    report(kind="failure_text", text="it ")
    report(kind="failure", text="failed", **rest)
    assert node.facts().failure.text == "it failed"
    for _ in range(3600):
        report(kind="failure_text", text="x" * 300)
    assert node.problem(None) == "node0: its agent has sent a failure without an end"


def test_its_last_messages_are_whole_and_few(report, node):
    report(kind="last_message", text="it took ", is_more=False)
    report(kind="last_message", text="3 s", is_more=True)
    assert node.last_messages.texts == ["it took 3 s"]
    for _ in range(20):
        report(kind="last_message", text="another", is_more=False)
    assert node.last_messages.texts == ["it took 3 s", *["another"] * 7]
    for _ in range(100):
        report(kind="last_message", text="x" * 300, is_more=True)
    assert len(node.last_messages.texts[-1]) == 1 << 14


def test_the_output_is_complete_with_the_last_record_of_each_stream(report, read, node, handle):
    report(**RUNNING)
    read(out=b"one\ntwo\n")
    assert node.describe_missing() == "node0 after 2 lines"
    report(kind="workers_ended")
    assert node.has_ended_workers
    assert node.describe_missing()
    report(**END)
    read(out=encode(handle.settings["nonce"], kind="end_of_output"))
    assert node.describe_missing() == ""
