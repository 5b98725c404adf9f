"""`JobDriver` starts agents, waits for all of them, and decides how the job ended."""

import base64
import contextlib
import json
import math
import os
import re
import signal
import socket
import threading
import time

import pytest
from plaunch._version import __version__
from plaunch.cli import STDERR as CONSOLE
from plaunch.cli import concluded
from plaunch.errors import ExitCode, UsageError
from plaunch_engines.driver import STOPS, JobDriver, handled
from plaunch_engines.errors import CommandSuspendedError, NodesLostError, StartError
from plaunch_engines.plan import JobPlan, OfferedStore
from plaunch_engines.records import VERSION, encode
from plaunch_engines.store_probe import probe_stores

from helpers.waiting import wait_until


class FakeHandle:
    """An agent that a test plays: it writes, and reads what the command sends."""

    def __init__(self, node, script):
        self.node = node
        self.address = "127.0.0.1"
        self.stdout, self.out = os.pipe()
        self.stderr, self.err = os.pipe()
        for fd in (self.stdout, self.stderr):
            os.set_blocking(fd, False)
        self.code = None
        self.is_stopped = False
        self.nonce = ""
        self.received = []
        self.settings = b""
        self._changed = threading.Condition()
        self._script = script
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        code = self._script(self)
        with self._changed:
            self._finish(code)

    def _finish(self, code):
        if self.code is None:
            self.code = code
            os.close(self.out)
            os.close(self.err)
            self._changed.notify_all()

    def hello(self, **changes):
        self.report(
            kind="hello",
            **{
                "protocol": VERSION,
                "version": __version__,
                "python": ".".join(map(str, __import__("sys").version_info[:3])),
                "host": "host",
                "pid": 1,
                "has_folder": True,
                "script": "9 bytes",
                "port": 20000,
                "addresses": ["192.0.2.7"],
                "client": "",
                **changes,
            },
        )

    def report(self, **fields):
        with self._changed:
            if self.code is not None:  # it was killed meanwhile
                return
            os.write(self.err, encode(self.nonce, **fields))
            if fields["kind"] == "end":
                os.write(self.out, encode(self.nonce, kind="end_of_output"))

    def run(self, round=0, nodes=2, *, is_job_wide=True):
        self.report(
            kind="running", round=round, attempt=0, nodes=nodes, workers=nodes,
            is_job_wide=is_job_wide,
        )  # fmt: skip

    def end(self, code, verdict=""):
        """Report a code; agents of `c10d` also know the verdict."""
        is_success = code == 0
        self.report(kind="end", code=int(code), has_succeeded=is_success, verdict=verdict)

    def receive(self):
        """Return the next message; None if the agent is stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self.received or self.is_stopped, 60)
            message = self.received.pop(0) if self.received else None
        if message and "nonce" in message:
            self.nonce = message.pop("nonce")
        return message

    def write(self, data):
        with self._changed:
            self.settings = self.settings or data
            self.received += [json.loads(line) for line in data.splitlines()]
            self._changed.notify_all()

    def poll(self):
        return self.code

    def stop(self):
        with self._changed:
            self.is_stopped = True
            self._finish(137)
            self._changed.notify_all()

    def close(self):
        self._thread.join(60)
        for fd in (self.stdout, self.stderr):
            os.close(fd)


class FakeEngine:
    def __init__(self, *scripts, can_replace=False):
        self.scripts = list(scripts)
        self.can_replace = can_replace
        self.nodes = None
        self.handles = []
        self.is_closed = False

    def start(self, command, indices):
        if len(self.scripts) < len(indices):
            raise UsageError("there are no more nodes")
        started = [FakeHandle(f"node{i}", self.scripts.pop(0)) for i in indices]
        self.handles += started
        return started

    def close(self):
        self.is_closed = True


class FakeOutput:
    def __init__(self):
        self.lines, self.messages = [], []
        self._changed = threading.Condition()
        self._fd, _ = os.pipe()

    def fileno(self):
        return self._fd

    def is_full(self):
        return False

    def hold(self, is_error):
        return 0.1

    def write(self, fd, node, line):
        self.lines.append((fd, node, line))

    def say(self, text, level="INFO"):
        with self._changed:
            self.messages.append(text)
            self._changed.notify_all()

    def wait_for(self, begin):
        with self._changed:
            assert self._changed.wait_for(
                lambda: any(text.startswith(begin) for text in self.messages), 60
            ), self.messages

    def show(self, status):
        pass

    def request_end(self):
        pass

    def is_written(self):
        return True

    def losses(self):
        return []


class CountingOutput(FakeOutput):
    """Counts the turns of the driver, each of which shows the status."""

    shown = 0

    def show(self, status):
        self.shown += 1


def wait_for_turn(output):
    """Wait until the driver has begun another turn, and ended it."""
    turn = output.shown
    wait_until(lambda: output.shown > turn + 1, "the next turn")


def plan(count, **fields):
    return JobPlan(
        **{
            "job": "job",
            "engine": "fake",
            "count": count,
            "min_nodes": fields.get("max_nodes", count),
            "max_nodes": count,
            "options": ["--nnodes=2"],
            "program": ["train.py"],
            "script": "train.py",
            "script_content": "9 bytes",
            "folder": "/work",
            "env": {"A": "1"},
            "start_timeout": 60.0,
            **fields,
        }
    )


def drive(engine, job, output=None):
    output = output or FakeOutput()
    driver = JobDriver(engine, job, output)
    try:
        return driver.run(), output
    finally:
        assert engine.is_closed


def succeeding(handle):
    handle.hello()
    if handle.receive() is None:
        return 0
    handle.run()
    os.write(handle.out, b"trained\n")
    handle.end(0, "succeeded")
    return 0


def waiting(handle):
    handle.hello()
    handle.receive()
    handle.receive()  # the signal that ends it
    return 143


def failing(code, **fields):
    known = {
        "text": f"exit {code}", "code": code, "is_first": True, "is_of_workers": True,
        "is_consequence": False,
    }  # fmt: skip

    def script(handle):
        handle.hello()
        if handle.receive() is not None:
            handle.report(kind="failure", **{**known, **fields})
            handle.end(code)
        return code

    return script


def test_all_agents_get_what_they_must_agree_on():
    seen = []

    def noting(handle):
        handle.hello()
        seen.append(handle.receive())
        handle.end(0, "succeeded")
        return 0

    code, output = drive(FakeEngine(noting, noting), plan(2))
    assert code == 0
    assert output.messages == ["run id job: 2 nodes at 127.0.0.1:20000; 2 agents"]
    arguments = sorted(settings["arguments"] for settings in seen)
    assert arguments == [
        [
            "--nnodes=2",
            "--rdzv-endpoint=127.0.0.1:20000",
            f"--node-rank={index}",
            f"--rdzv-conf=is_host={host}",
            "--local-addr=127.0.0.1",
            "--",
            "train.py",
        ]
        for index, host in enumerate(("true", "false"))
    ]
    assert [settings["env"] for settings in seen] == [{"A": "1"}, {"A": "1"}]


def test_options_of_the_backend_are_completed():
    arguments = plan(2, rdzv_conf="join_timeout=60").settings_of(1, "", "host:1", is_host=False)[
        "arguments"
    ]
    assert "--rdzv-conf=join_timeout=60,is_host=false" in arguments
    static = plan(2, rdzv_conf="join_timeout=60", is_static=True)
    arguments = static.settings_of(1, "", "host:1", is_host=False)["arguments"]
    assert "--rdzv-conf=join_timeout=60" in arguments


def test_a_spare_takes_any_rank():
    arguments = plan(3, max_nodes=2).settings_of(2, "", "host:1", is_host=False)["arguments"]
    assert not [one for one in arguments if one.startswith("--node-rank")]


def test_a_spare_begins_after_the_nodes_of_the_job():
    """Otherwise it could take the place of one of them."""
    received = []

    def ending(handle):
        handle.hello()
        if handle.receive() is not None:
            received.append(handle.node)
            handle.end(0, "succeeded")
        return 0

    engine = FakeEngine(ending, ending, ending)
    assert drive(engine, plan(3, max_nodes=2))[0] == 0
    assert sorted(received) == ["node0", "node1"]


def test_lines_have_the_name_of_their_node():
    _, output = drive(FakeEngine(succeeding, succeeding), plan(2))
    assert sorted(output.lines) == [(1, "node0", b"trained\n"), (1, "node1", b"trained\n")]


def test_with_one_node_lines_need_no_name():
    _, output = drive(FakeEngine(succeeding), plan(1))
    assert output.lines == [(1, "", b"trained\n")]


def test_the_first_failure_is_reported_once():
    def other(handle):
        handle.hello()
        handle.receive()
        handle.report(
            kind="failure", text="rank 3 failed elsewhere", code=3, is_first=False,
            is_of_workers=True, is_consequence=False,
        )  # fmt: skip
        handle.end(3)
        return 3

    code, output = drive(FakeEngine(other, failing(3)), plan(2))
    assert code == 3
    assert output.messages[1:] == ["exit 3"]


def test_each_restart_of_the_job_is_told_by_one_node():
    """The others took some tenths of a second more or less."""

    def restarting(handle):
        handle.hello()
        handle.receive()
        handle.run(0)
        for round in (1, 2):
            handle.run(round)
            handle.report(kind="restarted", round=round, text=f"restart {round}: {handle.node}")
        handle.end(0, "succeeded")
        return 0

    output = drive(FakeEngine(restarting, restarting), plan(2))[1]
    assert sum(text.startswith("restart 1: node") for text in output.messages) == 1
    assert sum(text.startswith("restart 2: node") for text in output.messages) == 1


def test_the_last_messages_of_one_node_come_below_the_report(capfd):
    def taking(seconds):
        def agent(handle):
            handle.hello()
            handle.receive()
            handle.report(kind="last_message", text=f"it took {seconds} s", is_more=False)
            handle.report(
                kind="failure", text="it failed", code=3, is_first=True, is_of_workers=True,
                is_consequence=False,
            )  # fmt: skip
            handle.end(3)
            return 3

        return agent

    def launch():
        code, output = drive(FakeEngine(taking(7), taking(8)), plan(2))
        CONSOLE.say(output.messages[-1])
        raise SystemExit(code)

    assert concluded(launch) == 3
    assert capfd.readouterr().err == "plaunch: it failed\nplaunch: it took 7 s\n"


def test_each_agent_gets_the_script_from_stdin():
    settings = []

    def agent(handle):
        handle.hello()
        settings.append(handle.receive())
        handle.run()
        handle.end(0, "succeeded")
        return 0

    code, _ = drive(FakeEngine(agent, agent), plan(2, stdin=b"print(1)"))
    assert code == 0
    assert [base64.b64decode(one["stdin"]) for one in settings] == [b"print(1)"] * 2


def test_the_report_of_a_failure_follows_all_output():
    """Messages, and the lines behind them, are held back to merge those of several nodes."""

    class OrderedOutput(FakeOutput):
        def write(self, fd, node, line):
            self.messages += line.decode().splitlines()

    def writing(handle):
        handle.hello()
        handle.receive()
        os.write(handle.err, b"plaunch: stopping\nthe last line\n")
        handle.end(3)
        return 3

    _, output = drive(FakeEngine(writing, failing(3)), plan(2), OrderedOutput())
    assert output.messages[-3:] == ["plaunch: stopping", "the last line", "exit 3"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"version": "0.0.9"}, "node1 has plaunch 0.0.9, and this machine .*; install the same"),
        ({"protocol": 99}, "node1 has plaunch"),
        ({"python": "3.1.4"}, "node1 has Python 3.1.4, and this machine .*; name another one with"),
        ({"has_folder": False}, "node1 has no folder /work.*; run the command in a folder that"),
        ({"script": ""}, "node1 has no train.py in /work; copy it to all nodes"),
        (
            {"script": "8 bytes"},
            r"node1 has another train.py in /work .* \(8 bytes, here 9 bytes\)",
        ),
    ],
)
def test_nothing_is_started_if_one_node_differs(changes, text):
    def other(handle):
        handle.hello(**changes)
        assert handle.receive() is None
        return 0

    engine = FakeEngine(succeeding, other)
    with pytest.raises(StartError, match="nothing was started: " + text):
        drive(engine, plan(2))
    assert not engine.handles[0].received


def test_an_agent_that_does_not_start_is_named_with_its_last_lines():
    def refused(handle):
        os.write(handle.err, b"ssh: connect to host node1 port 22: Connection refused\n")
        return 255

    with pytest.raises(StartError, match=r"node1: .*\(255\): ssh: .*refused"):
        drive(FakeEngine(succeeding, refused), plan(2))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"\(3\), and it has written nothing"),
        ("python: No module named 'plaunch_engines'", "; install plaunch .* for this Python, or"),
        ("execve(): /none/python: No such file or directory", "; name the Python of the nodes"),
    ],
)
def test_an_agent_that_does_not_start_has_a_hint(text, message):
    def refused(handle):
        os.write(handle.err, text.encode() + b"\n")
        return 3

    with pytest.raises(StartError, match=f"node1: the agent could not be started .*{message}"):
        drive(FakeEngine(succeeding, refused), plan(2, python="/none/python"))


@pytest.mark.parametrize(("count", "prefix"), [(1, "node1: "), (2, "")])
def test_a_failure_of_one_node_has_its_name(count, prefix):
    failed = failing(2, is_of_workers=False, text="no GPU to count")
    code, output = drive(FakeEngine(*[waiting] * (2 - count), *[failed] * count), plan(2))
    assert code == 2
    assert output.messages[-1] == f"{prefix}no GPU to count"


def test_all_nodes_with_problems_are_named():
    def refused_later(handle):
        time.sleep(0.5)
        os.write(handle.err, b"no route to host\n")
        return 255

    def refused(handle):
        return 255

    with pytest.raises(StartError, match=r"2 nodes:\n  node0: .*\n  node2: .*no route to host$"):
        drive(FakeEngine(refused, succeeding, refused_later), plan(3))


def test_a_problem_is_reported_although_other_nodes_still_start():
    def slow(handle):
        assert handle.receive() is None
        return 0

    def refused(handle):
        return 255

    with pytest.raises(StartError, match="nothing was started: node0"):
        drive(FakeEngine(refused, slow), plan(2, start_timeout=math.inf))


def test_an_agent_that_says_nothing_is_named_after_the_limit():
    def silent(handle):
        os.write(handle.err, b"Password:\n")
        assert handle.receive() is None
        return 0

    with pytest.raises(
        StartError, match=r"node0: no agent has reported within 2 s \(--start-limit\): Pass"
    ):
        drive(FakeEngine(silent), plan(1, start_timeout=2.0))


def lost(handle):
    handle.hello()
    handle.receive()
    handle.run()
    return 137


def leaving(handle):
    """Continue until the command requests the end, but not with a signal.

    A second signal would end the grace of workers.
    """
    handle.hello()
    handle.receive()
    assert "lost" in handle.receive()["leave"]
    handle.end(143)
    return 143


def test_without_replacement_too_few_nodes_end_the_job():
    engine = FakeEngine(leaving, lost)
    with pytest.raises(NodesLostError, match="node1 lost; 1 node is left, the job needs 2"):
        drive(engine, plan(2))


def test_a_lost_node_is_replaced():
    is_replaced = threading.Event()

    def survivor(handle):
        handle.hello()
        handle.receive()
        assert is_replaced.wait(60)
        handle.end(0, "succeeded")
        return 0

    def replacement(handle):
        handle.hello()
        settings = handle.receive()
        assert "--rdzv-conf=is_host=false" in settings["arguments"]
        is_replaced.set()
        handle.end(0, "succeeded")
        return 0

    engine = FakeEngine(survivor, lost, replacement, can_replace=True)
    code, output = drive(engine, plan(2))
    assert code == 0
    assert [handle.node for handle in engine.handles] == ["node0", "node1", "node2"]
    assert "node2 is started in the place of node1" in output.messages


def test_an_engine_without_further_nodes_says_so_and_the_job_ends():
    engine, output = FakeEngine(leaving, lost, can_replace=True), FakeOutput()
    with pytest.raises(NodesLostError):
        JobDriver(engine, plan(2), output).run()
    why = "node1 is not replaced: there are no more nodes; 1 node is left"
    assert why in output.messages


def test_a_node_of_a_static_job_is_not_replaced():
    engine = FakeEngine(leaving, lost, succeeding, can_replace=True)
    with pytest.raises(NodesLostError, match="node1 lost"):
        drive(engine, plan(2, is_static=True))
    assert len(engine.handles) == 2


def test_enough_nodes_continue_without_a_replacement():
    def survivor(handle):
        handle.hello()
        handle.receive()
        output.wait_for("node1 is not replaced")
        output.wait_for("the end of the workers' output may be missing")
        handle.end(0, "succeeded")
        return 0

    output = FakeOutput()
    code, _ = drive(FakeEngine(survivor, lost), plan(2, min_nodes=1), output)
    assert code == 0
    assert output.messages[1:] == [
        "node1 is lost: its agent ended with 137 without a report",
        "node1 is not replaced: --on=fake has no other node; 1 node is left",
        "the end of the workers' output may be missing: an agent or its connection has ended "
        "before it was complete (node1 after 0 lines)",
    ]


def test_a_node_that_is_lost_after_the_success_of_the_job_is_not_a_loss():
    """Another one has read in the job's record that all have succeeded."""
    engine = FakeEngine(succeeding, lost, can_replace=True)
    code, _ = drive(engine, plan(2))
    assert code == 0
    assert len(engine.handles) == 2


def done(handle, *, is_job_wide=True):
    """Succeed, without knowing of others; as after --exit-barrier-timeout."""
    handle.hello()
    handle.receive()
    handle.run(is_job_wide=is_job_wide)
    handle.end(0)
    return 0


def saving_until(is_killed):
    """Return an agent whose worker still saves, until it is killed or gets a signal."""

    def script(handle):
        handle.hello()
        handle.receive()
        handle.run()
        is_killed.wait(60)
        return 137

    return script


def test_a_node_that_is_lost_while_it_saves_is_not_a_success():
    is_killed = threading.Event()

    def finished(handle):
        code = done(handle)
        is_killed.set()
        return code

    with pytest.raises(NodesLostError, match="node0 is lost: its agent ended with 137"):
        drive(FakeEngine(saving_until(is_killed), finished), plan(2))


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_while_a_node_saves_is_not_a_success(signum):
    has_other_ended = threading.Event()

    def saving(handle):
        handle.hello()
        handle.receive()
        handle.run()
        assert has_other_ended.wait(60)
        os.kill(os.getpid(), signum)
        assert handle.receive() == {"signal": signum}
        handle.end(128 + signum)
        return 128 + signum

    def finished(handle):
        code = done(handle)
        has_other_ended.set()
        return code

    assert drive(FakeEngine(saving, finished), plan(2))[0] == 128 + signum


def test_a_signal_after_all_have_succeeded_is_a_success():
    """Their agents still deliver output."""
    both = threading.Barrier(2)

    def delivering(handle):
        done(handle)
        if both.wait(60) == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        assert handle.receive() == {"signal": signal.SIGTERM}
        return 0

    assert drive(FakeEngine(delivering, delivering), plan(2))[0] == 0


def test_a_round_that_a_node_has_not_reported_is_not_a_success():
    """It was killed between the round and the start of its workers."""

    def waiting_to_start(handle):
        handle.hello()
        handle.receive()
        return 137

    with pytest.raises(NodesLostError, match=r"node1 (is )?lost"):
        drive(FakeEngine(done, waiting_to_start), plan(2))


def test_the_nodes_of_an_earlier_round_do_not_count():
    is_gone = threading.Event()

    def left(handle):
        handle.hello()
        handle.receive()
        handle.run()
        handle.end(143)
        is_gone.set()
        return 143

    def continuing(handle):
        handle.hello()
        handle.receive()
        handle.run()
        assert is_gone.wait(60)
        handle.run(1, 1)
        handle.end(0)
        return 0

    assert drive(FakeEngine(continuing, left), plan(2, min_nodes=1))[0] == 0


def test_a_node_that_was_ended_by_itself_gives_its_code_if_the_job_needs_it():
    """A scheduler has ended it. The others get a request, which does not hurry their stop."""

    def left(handle):
        handle.hello()
        handle.receive()
        handle.run()
        handle.end(143)
        return 143

    def asked(handle):
        handle.hello()
        handle.receive()
        assert "node1 left; 1 node is left" in handle.receive()["leave"]
        handle.end(143)
        return 143

    code, output = drive(FakeEngine(asked, left), plan(2))
    assert code == 143
    assert output.messages[-1].startswith("node1 left; 1 node is left, the job needs 2")


def test_the_lost_host_of_the_store_is_named():
    is_lost = threading.Event()

    def host(handle):
        handle.hello()
        handle.receive()
        handle.run()
        is_lost.set()
        return 137

    def missing(handle):
        handle.hello()
        handle.receive()
        handle.run()
        assert is_lost.wait(60)
        handle.report(
            kind="failure", text="the store has not answered", code=113, is_first=False,
            is_of_workers=False, is_consequence=True,
        )  # fmt: skip
        handle.end(113)
        return 113

    code, output = drive(FakeEngine(host, missing), plan(2, min_nodes=1))
    assert code == 113
    assert output.messages[-1] == (
        "node0 is lost: its agent ended with 137 without a report; "
        "node1: the store has not answered"
    )


@pytest.fixture
def ignored():
    """SIGHUP is ignored, as by nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


def test_a_signal_that_is_ignored_stays_so(ignored):
    def hung_up(handle):
        os.kill(os.getpid(), signal.SIGHUP)
        return succeeding(handle)

    code, _ = drive(FakeEngine(hung_up), plan(1))
    assert code == 0
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_script_in_the_background_can_be_interrupted():
    """Its shell ignores SIGINT, which has an effect without `--on`, too."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert signal.SIGINT in handled(STOPS)
    finally:
        signal.signal(signal.SIGINT, before)


# --- the start ------------------------------------------------------------------------------------


def refused(handle):
    os.write(handle.err, b"no route to host\n")
    return 255


def finishing(count, until=lambda: None):
    """Return an agent that succeeds once all of so many nodes have begun, and `until` returns."""
    have_begun = threading.Barrier(count)

    def script(handle):
        handle.hello()
        if handle.receive() is None:
            return 0
        handle.run(0, count)
        have_begun.wait(60)
        until()
        handle.end(0, "succeeded")
        return 0

    return script


@pytest.mark.parametrize(
    ("fields", "dead"),
    [
        ({"count": 3, "min_nodes": 2, "max_nodes": 3}, 1),  # the minimum is there
        ({"count": 3, "max_nodes": 2}, 2),  # a spare is dead
        ({"count": 3, "max_nodes": 2}, 0),  # a spare takes the place
    ],
)
def test_a_dead_host_is_skipped_if_there_are_enough_others(fields, dead):
    output = FakeOutput()
    scripts = [finishing(2, lambda: output.wait_for(f"node{dead}: "))] * 3
    scripts[dead] = refused
    engine = FakeEngine(*scripts)
    code, _ = drive(engine, plan(**fields), output)
    assert code == 0
    assert any(
        re.match(f"node{dead}: the agent could not be started .*no route to host", text)
        for text in output.messages
    )
    [host] = [handle.node for handle in engine.handles if "is_host=true" in str(handle.settings)]
    assert host == ("node1" if dead == 0 else "node0")


def test_a_further_host_is_used_for_a_dead_one():
    engine = FakeEngine(*[finishing(2)] * 1, refused, finishing(2), can_replace=True)
    engine.scripts[2] = engine.scripts[0]
    code, output = drive(engine, plan(2))
    assert code == 0
    assert "node2 is started in the place of node1" in output.messages


def test_a_host_that_differs_is_an_error_even_if_it_is_not_needed():
    def other(handle):
        handle.hello(version="0.0.9")
        assert handle.receive() is None
        return 0

    def slow(handle):  # no worker runs yet
        handle.hello()
        assert handle.receive() is None or handle.receive() is None
        return 137

    with pytest.raises(StartError, match=r"nothing was started: node2 has plaunch 0\.0\.9"):
        drive(FakeEngine(slow, slow, other), plan(3, min_nodes=2, max_nodes=3))


def test_a_node_that_is_ready_later_joins():
    """Until the maximum is there, the rendezvous waits for `last_call_timeout`."""
    have_begun = threading.Event()
    complete = threading.Barrier(3)

    def early(handle):
        handle.hello()
        handle.receive()
        have_begun.set()
        complete.wait(60)
        handle.run(0, 3)
        handle.end(0, "succeeded")
        return 0

    def late(handle):
        assert have_begun.wait(60)
        return early(handle)

    code, _ = drive(FakeEngine(early, early, late), plan(3, min_nodes=2, max_nodes=3))
    assert code == 0


def test_all_hosts_with_the_same_problem_are_not_replaced():
    engine = FakeEngine(*[refused] * 10, can_replace=True)
    with pytest.raises(StartError, match="because of 2 nodes"):
        drive(engine, plan(2))
    assert len(engine.handles) == 2


def never_ready(handle):
    handle.receive()
    return 0


def survivor_until(is_replaced, end):
    """Return an agent that continues until another one is started, and then ends as `end` says."""

    def script(handle):
        handle.hello()
        handle.receive()
        handle.run()
        assert is_replaced.wait(60)
        code = end(handle)
        handle.end(code, "succeeded" if code == 0 else "")
        return code

    return script


def interrupted(handle):
    os.kill(os.getpid(), signal.SIGINT)
    assert handle.receive() == {"signal": signal.SIGINT}
    return 130


@pytest.mark.parametrize(("end", "code"), [(lambda handle: 0, 0), (interrupted, 130)])
def test_the_end_of_the_job_does_not_wait_for_a_replacement(end, code):
    """A cluster may have no node for it at all."""
    is_replaced = threading.Event()

    def replacement(handle):
        is_replaced.set()
        return never_ready(handle)

    engine = FakeEngine(survivor_until(is_replaced, end), lost, replacement, can_replace=True)
    assert drive(engine, plan(2, start_timeout=math.inf))[0] == code
    assert engine.handles[2].is_stopped


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"version": "0.0.9"}, "node2 has plaunch 0.0.9"),
        (None, "node2: no agent has reported within 60 s"),
    ],
)
def test_a_replacement_that_cannot_take_part_is_replaced_with_the_reason(changes, problem):
    is_replaced, clock, output = threading.Event(), JumpingClock(), FakeOutput()

    def unfit(handle):
        if changes:
            handle.hello(**changes)
        else:
            output.wait_for("node2 is started in the place of node1")
            clock.ahead += 60.0
        assert handle.receive() is None
        return 0

    def replacement(handle):
        handle.hello()
        handle.receive()
        is_replaced.set()
        handle.end(0, "succeeded")
        return 0

    engine = FakeEngine(
        survivor_until(is_replaced, lambda handle: 0), lost, unfit, replacement, can_replace=True
    )
    assert drive_by(clock, engine, plan(2), output) == 0
    assert any(text.startswith(problem) for text in output.messages), output.messages
    assert "node3 is started in the place of node2" in output.messages


def test_a_replacement_that_is_not_ready_when_the_job_ends_is_not_lost():
    output = FakeOutput()

    def lost_later(handle):
        handle.hello()
        handle.receive()
        handle.run(nodes=3)
        output.wait_for("node3 is started in the place of node1")
        return 137

    engine = FakeEngine(lost_later, lost, waiting, never_ready, can_replace=True)
    with pytest.raises(NodesLostError, match=r"^node0 lost; "):
        drive(engine, plan(3), output)
    assert engine.handles[3].is_stopped
    assert "" not in output.messages


def test_a_slow_engine_replaces_one_node_at_a_time():
    """Else the agents would get no sign of the command meanwhile."""
    clock, output, are_lost = JumpingClock(), CountingOutput(), threading.Event()
    turns = []

    class SlowEngine(FakeEngine):
        def start(self, command, indices):
            if self.handles:
                are_lost.set()
                for handle in self.handles[1:5]:
                    wait_until(lambda handle=handle: handle.code is not None, handle.node)
                turns.append(output.shown)
                clock.ahead += 10.0
            return super().start(command, indices)

    def survivor(handle):
        handle.hello()
        handle.receive()
        handle.run(nodes=5)
        wait_until(lambda: len(turns) == 4, lambda: turns)
        handle.end(0, "succeeded")
        return 0

    def lost_later(handle):
        handle.hello()
        handle.receive()
        are_lost.wait(60)
        return 137

    scripts = survivor, lost, *[lost_later] * 3, *[never_ready] * 4
    assert drive_by(clock, SlowEngine(*scripts, can_replace=True), plan(5), output) == 0
    assert len({*turns}) == 4


def test_a_spare_that_does_not_notice_the_end_is_stopped():
    has_begun = threading.Event()

    def first(handle):
        handle.hello()
        handle.receive()
        assert has_begun.wait(60)
        handle.run(0, 1)
        handle.end(0)
        return 0

    def spare(handle):
        handle.hello()
        handle.receive()
        has_begun.set()
        assert handle.receive() == {"leave": "the job is over"}
        handle.end(143)
        return 143

    code, _ = drive(FakeEngine(first, spare), plan(2, min_nodes=1))
    assert code == 0


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_reaches_all_agents(signum):
    both = threading.Barrier(2)

    def agent(handle):
        handle.hello()
        handle.receive()
        if both.wait(60) == 0:
            os.kill(os.getpid(), signum)
        assert handle.receive() == {"signal": signum}
        handle.end(128 + signum)
        return 128 + signum

    code, _ = drive(FakeEngine(agent, agent), plan(2))
    assert code == 128 + signum


def test_a_signal_before_all_are_ready_starts_nothing():
    def slow(handle):
        os.kill(os.getpid(), signal.SIGINT)
        assert handle.receive() is None
        return 0

    engine = FakeEngine(succeeding, slow)
    code, _ = drive(engine, plan(2))
    assert code == 128 + signal.SIGINT
    assert not engine.handles[0].received


def test_the_third_signal_kills_the_agents():
    def stubborn(handle):
        handle.hello()
        handle.receive()
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            handle.receive()  # else signals may be merged
        os.kill(os.getpid(), signal.SIGINT)
        while handle.receive() is not None:
            pass
        return 0

    engine = FakeEngine(stubborn)
    code, output = drive(engine, plan(1))
    assert code == 128 + signal.SIGINT
    killed = "the agents are killed; the end of their output may be missing"
    assert killed in output.messages
    assert engine.handles[0].is_stopped


def test_an_excluded_node_is_replaceable():
    def excluded(handle):
        handle.hello()
        handle.receive()
        handle.end(ExitCode.NODE_EXCLUDED)
        return ExitCode.NODE_EXCLUDED

    engine = FakeEngine(excluded, succeeding, can_replace=True)
    code, output = drive(engine, plan(1))
    assert code == 0
    assert output.messages[1] == "node0 was excluded from the job"


# --- agents that do not end -----------------------------------------------------------------------


RUNNING = {
    "kind": "running", "round": 0, "attempt": 0, "nodes": 2, "workers": 2, "is_job_wide": True,
}  # fmt: skip


class JumpingClock:
    """The monotonic clock, which a test may put forward."""

    def __init__(self):
        self.ahead = 0.0

    def __call__(self):
        return time.monotonic() + self.ahead


def drive_by(clock, engine, job, output):
    return JobDriver(engine, job, output, clock=clock).run()


def killed(output):
    return [text for text in output.messages if "its agent is killed" in text]


SILENCE = {
    "kind": "failure", "text": "nothing has come from the command", "code": 117, "is_first": False,
    "is_of_workers": False, "is_consequence": True,
}  # fmt: skip


class Suspended:
    """Two agents of a command that is suspended, and notices that when it continues.

    Args:
        seconds: for which it is.
        code: with which the agents end; they report that nothing has come from the command if it
            is 117.
    """

    def __init__(self, seconds, code):
        self.pause_clock = JumpingClock()
        self.output = FakeOutput()
        self._seconds = seconds
        self._code = code
        self._both = threading.Barrier(2)

    def script(self, handle):
        handle.hello()
        handle.receive()
        handle.run()
        if self._both.wait(60) == 0:
            self.pause_clock.ahead += self._seconds
        if self._code == ExitCode.COMMAND_SUSPENDED:
            handle.report(**SILENCE)
        if self._code is None:
            assert "this command was suspended" in handle.receive()["leave"]
        code = 143 if self._code is None else self._code
        handle.end(code, "succeeded" if code == 0 else "")
        return code

    def run(self, limit=40.0):
        engine = FakeEngine(self.script, self.script)
        job = plan(2, silence_limit=limit)
        return JobDriver(engine, job, self.output, pause_clock=self.pause_clock).run()


@pytest.mark.parametrize(("seconds", "code"), [(55.0, None), (55.0, 143), (55.0, 117), (37.0, 117)])
def test_a_command_that_was_suspended_for_too_long_has_its_own_code(seconds, code):
    """Agents that have got nothing for 40 s end their workers, up to 5 s after the last line."""
    with pytest.raises(CommandSuspendedError, match=f"suspended for {seconds:.0f} s") as caught:
        Suspended(seconds, code).run()
    assert caught.value.exit_code == 117


def test_a_signal_counts_if_the_machine_was_asleep_after_it():
    """The clock of the job stands still meanwhile."""
    pause_clock, output = JumpingClock(), CountingOutput()

    def asleep(handle):
        handle.hello()
        handle.receive()
        handle.run(nodes=1)
        os.kill(os.getpid(), signal.SIGTERM)
        handle.receive()
        wait_for_turn(output)
        pause_clock.ahead += 3600.0
        wait_for_turn(output)
        handle.end(143)
        return 143

    engine, job = FakeEngine(asleep), plan(1, silence_limit=40.0)
    assert JobDriver(engine, job, output, pause_clock=pause_clock).run() == 143


@pytest.mark.parametrize(("seconds", "limit"), [(55.0, 40.0), (55.0, math.inf), (20.0, 40.0)])
def test_a_job_that_succeeds_while_the_command_is_suspended_has_succeeded(seconds, limit):
    assert Suspended(seconds, 0).run(limit) == 0


def test_a_node_that_is_cut_off_is_lost_although_its_report_arrives():
    """The command was not suspended, so the network has interrupted the connection."""
    output = FakeOutput()

    def cut_off(handle):
        handle.hello()
        handle.receive()
        handle.run()
        handle.report(**SILENCE)
        handle.end(117)
        return 117

    def survivor(handle):
        handle.hello()
        handle.receive()
        handle.run()
        output.wait_for("node2 is started in the place of node1")
        handle.end(0, "succeeded")
        return 0

    engine = FakeEngine(survivor, cut_off, never_ready, can_replace=True)
    code, _ = drive(engine, plan(2, silence_limit=40.0), output)
    assert code == 0
    why = "node1 has ended its workers: nothing has come from the command"
    assert why in output.messages


def test_an_agent_whose_workers_run_is_not_ended_because_another_has_ended():
    """Rank 0 may save a checkpoint for a long time after the others have ended."""
    clock, output = JumpingClock(), FakeOutput()

    def saving(handle):
        handle.hello()
        handle.receive()
        handle.report(**RUNNING)
        wait_until(lambda: engine.handles[1].code == 0, "the end of the other")
        for _ in range(10):
            clock.ahead += 1000.0
            time.sleep(0.05)
        os.write(handle.out, b"saved\n")
        handle.report(kind="workers_ended")
        handle.end(0, "succeeded")
        return 0

    engine = FakeEngine(saving, succeeding)
    assert drive_by(clock, engine, plan(2), output) == 0
    assert (1, "node0", b"saved\n") in output.lines
    assert killed(output) == []


def test_agents_that_count_rounds_for_themselves_are_not_compared():
    """With `static`, an agent whose workers never failed is in round 0."""
    clock, output = JumpingClock(), FakeOutput()

    def training(handle):
        handle.hello()
        handle.receive()
        handle.run(is_job_wide=False)
        wait_until(lambda: engine.handles[1].code == 0, "the end of the other")
        for _ in range(10):
            clock.ahead += 1000.0
            time.sleep(0.05)
        handle.end(0)
        return 0

    def restarted(handle):
        handle.hello()
        handle.receive()
        handle.run(round=1, is_job_wide=False)
        handle.end(0)
        return 0

    engine = FakeEngine(training, restarted)
    assert drive_by(clock, engine, plan(2, is_static=True), output) == 0
    assert killed(output) == []


def test_an_agent_that_delivers_output_is_not_ended():
    """Its workers have ended, and a busy machine takes long to pass on what they have written."""
    clock, output = JumpingClock(), FakeOutput()
    lines = [b"epoch %d\n" % number for number in range(30)]

    def slow(handle):
        handle.hello()
        handle.receive()
        handle.report(**RUNNING)
        handle.report(kind="workers_ended")
        wait_until(lambda: engine.handles[1].code == 0, "the end of the other")
        for line in lines:
            os.write(handle.out, line)
            wait_until(lambda line=line: (1, "node0", line) in output.lines, lambda: output.lines)
            clock.ahead += 30.0
        handle.end(0, "succeeded")
        return 0

    engine = FakeEngine(slow, succeeding)
    assert drive_by(clock, engine, plan(2), output) == 0
    assert [text for _, node, text in output.lines if node == "node0"] == lines
    assert killed(output) == []


def until_stopped(*records):
    def script(handle):
        handle.hello()
        handle.receive()
        for record in records:
            handle.report(**record)
        while handle.receive() is not None:
            pass
        return 137

    return script


def signalling(handle):
    """Let the command receive SIGTERM, which ends this agent."""
    handle.hello()
    handle.receive()
    handle.run()
    os.kill(os.getpid(), signal.SIGTERM)
    assert handle.receive() == {"signal": signal.SIGTERM}
    handle.end(143)
    return 143


@pytest.mark.parametrize(
    ("records", "other", "limit"),
    [
        ([RUNNING, {"kind": "workers_ended"}], succeeding, 45),
        ([], succeeding, 45),
        ([RUNNING], failing(3), 90),
        ([RUNNING], signalling, 90),
        ([RUNNING, {"kind": "workers_ended"}], signalling, 45),
    ],
)
def test_an_agent_that_hangs_after_the_end_of_the_job_is_ended(records, other, limit):
    output = FakeOutput()
    engine = FakeEngine(until_stopped(*records), other)
    job = plan(2, start_timeout=math.inf)
    drive_by(lambda: 100 * time.monotonic(), engine, job, output)
    assert killed(output) == [
        f"node0: its agent is killed, as it has neither ended nor written anything for {limit} s "
        "since the job is over"
    ]


def test_an_invalid_record_ends_its_node_alone():
    output = FakeOutput()

    def invalid(handle):
        handle.hello()
        handle.receive()
        handle.report(**{**RUNNING, "workers": None})
        assert handle.receive() is None
        return 0

    def survivor(handle):
        handle.hello()
        handle.receive()
        handle.report(**RUNNING)
        output.wait_for("node1: its agent has sent an invalid record")
        handle.end(0, "succeeded")
        return 0

    code, _ = drive(FakeEngine(survivor, invalid), plan(2, min_nodes=1), output)
    assert code == 0
    assert (
        "node1: its agent has sent an invalid record: workers of running is None, not a whole "
        f"number from 1 to {2**63 - 1}"
    ) in output.messages


def test_a_line_of_a_worker_is_no_record():
    """It could have ended the job with 0."""

    def forging(handle):
        handle.hello()
        handle.receive()
        handle.report(**RUNNING)
        for nonce in ("", "0" * 32):
            for record in ({"kind": "end", "code": 0}, {"kind": "end"}, {"kind": "dance"}):
                os.write(handle.out, encode(nonce, **record))
                os.write(handle.err, encode(nonce, **record))
        handle.report(
            kind="failure", text="exit 3", code=3, is_first=True, is_of_workers=True,
            is_consequence=False,
        )  # fmt: skip
        handle.end(3)
        return 3

    code, output = drive(FakeEngine(forging), plan(1))
    assert code == 3
    assert sum(text.count(b"\x1eplaunch ") for _, _, text in output.lines) == 12


# --- the store of the job -------------------------------------------------------------------------


def offering(**fields):
    return OfferedStore(token=b"0123456789abcdef", run_id="job", **fields)


def probing(then, error=""):
    """Return an agent that answers what it reaches, and continues as `then` with its settings."""

    def script(handle):
        handle.hello()
        probe = handle.receive()
        if probe is None:
            return 0
        for found in probe_stores(**probe["probe"], timeout=60.0):
            handle.report(kind="probed", **found._replace(error=found.error or error)._asdict())
        settings = handle.receive()
        return 0 if settings is None else then(handle, settings)

    return script


def succeed_with(seen):
    def then(handle, settings):
        seen[handle.node] = settings["arguments"]
        handle.run()
        handle.end(0)
        return 0

    return then


def test_the_command_hosts_the_store():
    seen = {}
    agent = probing(succeed_with(seen))
    code, output = drive(FakeEngine(agent, agent), plan(2, store=offering()))
    assert code == 0
    endpoint = re.fullmatch(
        r"run id job: 2 nodes at (127\.0\.0\.1:\d+), hosted by this command; 2 agents",
        output.messages[0],
    )[1]
    assert len(seen) == 2
    for arguments in seen.values():
        assert f"--rdzv-endpoint={endpoint}" in arguments
        assert "--rdzv-conf=is_host=false" in arguments


def test_the_first_node_hosts_the_store_if_one_does_not_reach_the_command():
    seen = {}
    agents = probing(succeed_with(seen)), probing(succeed_with(seen), "no route to host")
    code, output = drive(FakeEngine(*agents), plan(2, store=offering()))
    assert code == 0
    assert output.messages == [
        "node0 hosts the rendezvous store, and the job ends if it is lost; this command does not "
        "host it: node1: no route to host",
        "run id job: 2 nodes at 127.0.0.1:20000; 2 agents",
    ]
    assert "--rdzv-conf=is_host=true" in seen["node0"]
    assert "--rdzv-conf=is_host=false" in seen["node1"]


def test_a_node_with_an_invalid_answer_does_not_decide_who_hosts_the_store():
    has_answered = threading.Event()

    def answering(handle):
        handle.hello()
        for found in probe_stores(**handle.receive()["probe"], timeout=60.0):
            handle.report(kind="probed", **found._asdict())
        has_answered.set()
        handle.receive()
        handle.run(nodes=1)
        handle.end(0)
        return 0

    def invalid(handle):
        handle.hello()
        handle.receive()
        has_answered.wait(60)
        handle.report(kind="probed", endpoint=1, microseconds=1, error="")
        handle.receive()
        return 137

    job = plan(2, min_nodes=1, store=offering())
    code, output = drive(FakeEngine(answering, invalid), job)
    assert code == 0
    assert not any("does not host it" in text for text in output.messages), output.messages


def test_nothing_is_started_if_the_command_must_host_the_store_and_cannot():
    seen = {}
    agents = probing(succeed_with(seen)), probing(succeed_with(seen), "no route to host")
    with pytest.raises(StartError, match=r"nothing was started: .*--store-host=command.*no route"):
        drive(FakeEngine(*agents), plan(2, store=offering(is_required=True)))
    assert seen == {}


def test_a_replacement_that_does_not_reach_the_store_is_refused_with_the_reason():
    is_replaced = threading.Event()

    def survive(handle, settings):
        handle.run()
        assert is_replaced.wait(60)
        handle.run(1)
        handle.end(0)
        return 0

    def join(handle, settings):
        is_replaced.set()
        handle.run(1)
        handle.end(0)
        return 0

    engine = FakeEngine(
        probing(lambda handle, settings: 137),
        probing(survive),
        probing(join, "no route to host"),
        probing(join),
        can_replace=True,
    )
    code, output = drive(engine, plan(2, store=offering()))
    assert code == 0
    assert "node2 cannot join, as this command hosts the store: no route to host" in output.messages
    assert "node3 is started in the place of node2" in output.messages


def test_the_store_outlives_the_agents():
    """They need it until they have ended."""
    states = []

    class Engine(FakeEngine):
        def close(self):
            for name in seen:
                host = seen[name][0].partition("=")[2]
                with contextlib.suppress(OSError), socket.create_connection(host.split(":")):
                    states.append("open")
            super().close()

    seen = {}

    def then(handle, settings):
        seen[handle.node] = [a for a in settings["arguments"] if "endpoint" in a]
        handle.run(nodes=1)
        handle.end(0)
        return 0

    assert drive(Engine(probing(then)), plan(1, store=offering()))[0] == 0
    assert states == ["open"]
