"""The event stream, made from the notifications of a launch."""

from __future__ import annotations

import pathlib
import re
import signal
from dataclasses import replace

import pytest
from plaunch.agent import (
    EventLog,
    Requested,
    RequestKind,
    RunResult,
    WorkerExit,
    WorkerInfo,
    WorkerState,
    notifications,
)
from plaunch.errors import (
    RendezvousClosedError,
    RendezvousTimeoutError,
    SignalException,
    UsageError,
)
from plaunch.events import Event
from plaunch.plugin.contributions import HOOK_OF
from plaunch.process.child_failed import ChildFailedError
from plaunch.process.failure import ProcessFailure
from plaunch.process.signals import SignalAction
from plaunch.process.stopping.stop_sequence import StopStep
from plaunch.rendezvous.api import ChangeKind, MembershipChange
from plaunch_events import COMMON_KEYS, SCHEMA, EventStream
from plaunch_events.launch_events import EventPublisher
from plaunch_events.schema import MAX_TEXT
from plaunch_torchrun.elastic.events import to_torchrun

from helpers.clock import Clock
from helpers.groups import make_group

WORKERS = (
    WorkerInfo(local_rank=0, global_rank=2, role_rank=1, world_size=6, role_world_size=5, pid=77),
    WorkerInfo(local_rank=1, global_rank=3, role_rank=2, world_size=6, role_world_size=5, pid=78),
)
BEFORE = make_group(
    state=WorkerState.INIT,
    round=-1,
    group_rank=-1,
    group_world_size=-1,
    master_addr="",
    master_port=0,
    workers=tuple(replace(worker, global_rank=-1, pid=None) for worker in WORKERS),
)
GROUP = make_group(group_rank=1, group_world_size=3, master_addr="node0", workers=WORKERS)
LAUNCH = notifications.LaunchStarted(
    replace(BEFORE, workers=()), "train.py", "c10d", "node0:29400", 1, 3, 2
)


@pytest.fixture
def clock():
    return Clock()


class Recorder:
    """A log that has begun; `events` are the events so far."""

    def __init__(self, clock):
        self.log = EventLog(clock=clock, wall_clock=lambda: clock() + 1_000_000)
        self.add = self.log.add
        self.events = []
        self._stream = EventStream(self.log)
        self.log.subscribe(lambda notification: self.events.extend(self._stream.take()))
        self.add(LAUNCH)


@pytest.fixture
def recorder(clock):
    return Recorder(clock)


def failure(rank=1, exitcode=-9, pid=78, **changes):
    facts = {"host": "alpha", **changes}
    return ProcessFailure(rank, pid, exitcode, "/no/such/file", **facts)


def test_a_log_without_a_launch_is_an_error(clock):
    log = EventLog(clock=clock)
    log.add(notifications.BeforeRendezvous(GROUP))
    with pytest.raises(RuntimeError, match="must begin with LaunchStarted"):
        EventStream(log).take()


def play(recorder, history, error=None):
    """Record a whole launch; return the names without their prefix, and a few words."""
    for notification in history:
        recorder.add(notification)
    recorder.log.finish(error)
    return [event.name.removeprefix("plaunch.") for event in recorder.events]


def play_one(recorder, name):
    """Record one of the histories."""
    recorded, error, *_ = HISTORIES[name]
    return play(recorder, recorded, error)


def exited(worker, code, stopped=False, failed=None):
    exit_ = WorkerExit(worker, code, stopped, failed, 1_000_100.0)
    return notifications.WorkerExitSeen(GROUP, exit_)


def step(name, signum=signal.SIGTERM, ranks=(0,), seconds=0.5):
    return notifications.Stopping(GROUP, StopStep(name, signum, ranks, seconds))


START = [
    notifications.BeforeRendezvous(BEFORE),
    notifications.AfterRendezvous(replace(GROUP, state=WorkerState.INIT), 2.5),
    notifications.BeforeWorkers(GROUP),
    notifications.WorkersStarted(GROUP),
    notifications.StateChanged(GROUP, WorkerState.INIT, WorkerState.HEALTHY),
]
STARTED = [
    "launcher.started",
    "rendezvous.begun",
    "rendezvous.completed",
    "worker.started",
    "worker.started",
    "workers.started",
    "state.changed",
]
FAILED = ChildFailedError("train.py", {3: failure()})
SUCCEEDS = notifications.AgentFinished(GROUP, RunResult(WorkerState.SUCCEEDED), "succeeded")


def another_round(reason):
    return [
        notifications.BeforeRendezvous(GROUP),
        notifications.AfterRendezvous(replace(GROUP, round=1), 0.1, reason),
    ]


BEGUN = ["launcher.started", "rendezvous.begun"]
NO_ROUND = [*BEGUN, "rendezvous.failed", "launcher.finished"]
ANOTHER = ["rendezvous.begun", "restart", "rendezvous.completed"]

HISTORIES = {
    "success": (
        [
            *START,
            exited(WORKERS[0], 0),
            exited(WORKERS[1], 0),
            notifications.StateChanged(GROUP, WorkerState.HEALTHY, WorkerState.SUCCEEDED),
            SUCCEEDS,
        ],
        None,
        [*STARTED, "worker.exited", "worker.exited", "state.changed", "launcher.finished"],
        ("succeeded", 0),
    ),
    "a delayed restart": (
        [
            *START,
            exited(WORKERS[1], 17, failed=failure()),
            notifications.StateChanged(GROUP, WorkerState.HEALTHY, WorkerState.STOPPED),
            notifications.RestartDelayed(GROUP, 30.0),
            *another_round("restart 1 of 3, after 30 s"),
            SUCCEEDS,
        ],
        None,
        [
            *STARTED,
            *("worker.exited", "state.changed", "restart.delayed", *ANOTHER, "launcher.finished"),
        ],
        ("succeeded", 0),
    ),
    "a slow console": (
        [*START, notifications.ConsoleAwaited(GROUP, 4711), SUCCEEDS],
        None,
        [*STARTED, "console.awaited", "launcher.finished"],
        ("succeeded", 0),
    ),
    "preloaded modules": (
        [
            *START[:2],
            notifications.Preloaded(GROUP, {"torch": 1.5, "numpy": 0.5}, 0.5),
            notifications.BeforeWorkers(GROUP),
            notifications.WorkersStarted(GROUP, forked=[0]),
            SUCCEEDS,
        ],
        None,
        [*STARTED[:3], "preload.completed", *STARTED[3:6], "launcher.finished"],
        ("succeeded", 0),
    ),
    "failure with a restart, then for good": (
        [
            *START,
            exited(WORKERS[1], -9, failed=failure()),
            step("signalled"),
            exited(WORKERS[0], -15, stopped=True),
            step("gone"),
            notifications.WorkerExited(GROUP, WorkerExit(WORKERS[1], -9, False, failure())),
            notifications.WorkersFailed(GROUP, {3: failure()}, 3),
            notifications.BeforeRendezvous(replace(GROUP, attempt=1)),
            notifications.AfterRendezvous(
                replace(GROUP, attempt=1, round=1),
                0.1,
                "rank 3 failed; free 3 GB",
                "restart 1 of 3",
            ),
            notifications.WorkersFailed(
                replace(GROUP, attempt=1, round=1), {3: failure(pid=80)}, 3
            ),
            notifications.AgentFinished(GROUP, RunResult(WorkerState.FAILED), "failed"),
        ],
        FAILED,
        [
            *STARTED,
            *["worker.exited", "stop.step", "worker.exited", "stop.step", "failure"],
            *[*ANOTHER, "failure", "launcher.finished"],
        ],
        ("failed", 137),
    ),
    "a restart that somebody asks for": (
        [
            *START,
            notifications.RequestReceived(
                GROUP, Requested(RequestKind.RESTART, "no progress", "the watch")
            ),
            *another_round("no progress"),
            SUCCEEDS,
        ],
        None,
        [*STARTED, "request.received", *ANOTHER, "launcher.finished"],
        ("succeeded", 0),
    ),
    "a change of the nodes": (
        [
            *START,
            notifications.MembershipChanged(
                GROUP, MembershipChange(ChangeKind.LOST, "b", "silent")
            ),
            step("signalled"),
            step("killed", signal.SIGKILL),
            step("gone"),
            *another_round("node b was lost"),
            SUCCEEDS,
        ],
        None,
        [*STARTED, "membership.changed", *["stop.step"] * 3, *ANOTHER, "launcher.finished"],
        ("succeeded", 0),
    ),
    "a restart whose workers run": (
        [
            *START,
            exited(WORKERS[1], -9, failed=failure()),
            *another_round("rank 3 failed"),
            notifications.WorkersStarted(replace(GROUP, round=1)),
            SUCCEEDS,
        ],
        None,
        [
            *[*STARTED, "worker.exited", *ANOTHER, *STARTED[3:6]],
            *["restart.completed", "launcher.finished"],
        ],
        ("succeeded", 0),
    ),
    "a signal": (
        [
            *START,
            notifications.SignalReceived(GROUP, signal.SIGUSR1, SignalAction.NOTIFY),
            notifications.SignalReceived(GROUP, signal.SIGUSR1, SignalAction.NOTIFY, "b"),
            notifications.SignalReceived(GROUP, signal.SIGTERM, SignalAction.STOP),
            notifications.AgentFinished(GROUP, None, "signalled"),
        ],
        SignalException("SIGTERM received", signal.SIGTERM),
        [*STARTED, *["signal.received"] * 3, "launcher.finished"],
        ("signalled", 143),
    ),
    "a rendezvous that takes too long": (
        [
            notifications.BeforeRendezvous(BEFORE),
            notifications.RendezvousFailed(BEFORE, 600.0, "nobody came\nat all"),
            notifications.AgentFinished(BEFORE, None, "error"),
        ],
        RendezvousTimeoutError("nobody came"),
        NO_ROUND,
        ("error", 111),
    ),
    "a spare that is not needed": (
        [
            notifications.BeforeRendezvous(BEFORE),
            notifications.RendezvousFailed(BEFORE, 60.0, "not needed"),
            notifications.AgentFinished(
                BEFORE, RunResult(WorkerState.SUCCEEDED), "not_needed", "not needed"
            ),
        ],
        None,
        NO_ROUND,
        ("not_needed", 0),
    ),
    "closed by another node": (
        [
            notifications.BeforeRendezvous(BEFORE),
            notifications.AgentFinished(BEFORE, None, "closed"),
        ],
        RendezvousClosedError("it was closed"),
        [*BEGUN, "launcher.finished"],
        ("closed", 112),
    ),
    "an exception before there is an agent": (
        [],
        UsageError("no such port"),
        ["launcher.started", "launcher.finished"],
        ("error", 2),
    ),
    "a bug": (
        [notifications.BeforeRendezvous(BEFORE), notifications.AgentFinished(BEFORE, None)],
        ZeroDivisionError("division by zero"),
        [*BEGUN, "launcher.finished"],
        ("error", 1),
    ),
    "Ctrl-C before there are workers": (
        [notifications.BeforeRendezvous(BEFORE)],
        KeyboardInterrupt(),
        [*BEGUN, "launcher.finished"],
        ("signalled", 130),
    ),
}


@pytest.mark.parametrize("history", HISTORIES)
def test_histories(recorder, history):
    *_, names, end = HISTORIES[history]
    assert play_one(recorder, history) == names
    last = recorder.events[-1].metadata
    assert (last["outcome"], last["exit_code"]) == end
    assert bool(last["reason"]) == (end[0] != "succeeded")
    assert "\n" not in last["reason"]
    # Every event has the keys of the schema, and plain values.
    for event in recorder.events:
        kind = SCHEMA[event.name]
        assert event.source is kind.source
        assert {*event.metadata} == {*COMMON_KEYS, *kind.keys}, event.name
        assert all(
            value is None or type(value) in (str, int, float, bool)
            for value in event.metadata.values()
        ), event
        assert Event.deserialize(event.serialize()) == event


def test_all_kinds_of_events_occur_in_these_histories():
    names = {f"plaunch.{name}" for _, _, recorded, _ in HISTORIES.values() for name in recorded}
    assert names == {*SCHEMA}


def test_common_keys_have_the_values_of_the_round(recorder):
    play_one(recorder, "success")
    first, *_, last = recorder.events
    known = ("round", "group_rank", "ranks")
    assert [first.metadata[key] for key in known] == [-1, -1, ""]
    assert [last.metadata[key] for key in known] == [0, 1, "2-3"]
    assert (first.timestamp, first.monotonic) == (1_000_100.0, 100.0)


def test_the_cause_of_a_restart(recorder):
    play_one(recorder, "failure with a restart, then for good")
    (restart,) = (event for event in recorder.events if event.name == "plaunch.restart")
    recorded = restart.metadata
    assert (recorded["cause"], recorded["attempt"]) == ("failure", 1)
    assert recorded["reason"] == "rank 3 failed; free 3 GB"
    assert recorded["decision"] == "restart 1 of 3"


@pytest.mark.parametrize(
    ("news", "cause"),
    [
        (notifications.RequestReceived(GROUP, Requested(RequestKind.RESTART, "", "")), "request"),
        (notifications.RequestReceived(GROUP, Requested(RequestKind.LEAVE, "", "")), "membership"),
        (notifications.MembershipChanged(GROUP, MembershipChange(ChangeKind.RESTART)), "request"),
        (notifications.MembershipChanged(GROUP, MembershipChange(ChangeKind.LEFT)), "membership"),
        (notifications.MembershipChanged(GROUP, MembershipChange(ChangeKind.FAILED)), "failure"),
        (notifications.WorkersFailed(GROUP, {}, 0), "failure"),
    ],
)
def test_the_cause_of_a_restart_after_changes_and_requests(recorder, news, cause):
    rounds = [notifications.AfterRendezvous(replace(GROUP, round=n)) for n in (1, 2)]
    play(recorder, [*START, news, *rounds])
    recorded = [event.metadata["cause"] for event in recorder.events if "restart" in event.name]
    assert recorded == [cause, "membership"]


def test_workers_that_fail_because_a_node_is_gone_are_not_the_cause(recorder):
    lost = notifications.MembershipChanged(GROUP, MembershipChange(ChangeKind.LOST))
    rounds = [notifications.AfterRendezvous(replace(GROUP, round=1))]
    play(recorder, [*START, notifications.WorkersFailed(GROUP, {}, 0), lost, *rounds])
    assert [event.metadata["cause"] for event in recorder.events if "restart" in event.name] == [
        "membership"
    ]


def test_the_page_lists_the_hook_and_the_events_of_each_notification(clock):
    page = (pathlib.Path(__file__).parents[2] / "docs" / "events.md").read_text()
    lines = page.partition("| notification | hook |")[2].partition("\n\n")[0].split("\n")[2:]
    rows = [[re.findall(r"`([\w.]+)`", cell) for cell in line[1:].split("|")] for line in lines]
    hooks, events = {}, {}
    for (notification,), hook, names, _ in rows:
        kind = getattr(notifications, notification)
        hooks.update((kind, name) for name in hook)
        events[kind] = set(names)
    assert hooks == HOOK_OF
    assert [*events] == sorted(notifications.Notification.__subclasses__(), key=[*events].index)
    found = {kind: set() for kind in events}
    for recorded, error, *_ in HISTORIES.values():
        log = EventLog(clock=clock)
        stream = EventStream(log)
        for notification in (LAUNCH, *recorded, notifications.LaunchFinished(GROUP, error)):
            log.add(notification)
            names = [event.name.removeprefix("plaunch.") for event in stream.take()]
            found[type(notification)].update(names)
    assert found == events


@pytest.mark.parametrize("name", HISTORIES)
def test_a_late_reader_gets_the_same_events(recorder, clock, name):
    recorded, error, *_ = HISTORIES[name]
    for notification in recorded:
        clock.now += 1
        recorder.add(notification)
    recorder.log.finish(error)
    late = EventStream(recorder.log)
    assert late.take() == recorder.events
    assert late.take() == []


def test_a_late_reader_misses_what_the_log_has_dropped(clock):
    log = EventLog(kept=2, clock=clock)
    for notification in (LAUNCH, *START):
        log.add(notification)
    log.finish(None)
    assert [entry.number for entry in log.since(0)] == [0, 5, 6]
    assert [entry.number for entry in log.since(6)] == [6]
    assert [event.name.removeprefix("plaunch.") for event in EventStream(log).take()] == [
        "launcher.started",
        "state.changed",
        "launcher.finished",
    ]


@pytest.mark.parametrize(
    ("reply", "noticing"), [("an exception", 3.0), (None, 1.0)], ids=["wrote of it", "silent"]
)
def test_the_times_of_a_restart(recorder, clock, caplog, reply, noticing):
    """A worker failed when it wrote its error file, or else when it exited."""
    failed = failure(timestamp=1_000_108.0)
    if reply is not None:
        failed = replace(failed, error_file_data={"message": reply})
    exit_ = WorkerExit(WORKERS[1], 1, False, failed, 1_000_110.0)
    end = notifications.WorkerExitSeen(GROUP, exit_)
    stops = notifications.StateChanged(GROUP, WorkerState.HEALTHY, WorkerState.STOPPED)
    again = [*another_round("rank 3 failed"), notifications.WorkersStarted(replace(GROUP, round=1))]
    recorder.log.subscribe(EventPublisher(recorder.log, [], []).handle_notification)
    for at, recorded in [*[(101, one) for one in START], (111, end), (111, stops)]:
        clock.now = at
        recorder.add(recorded)
    with caplog.at_level("INFO", "plaunch"):
        for clock.now, recorded in zip((115, 123, 139), again, strict=True):
            recorder.add(recorded)
    (event,) = (event for event in recorder.events if event.name == "plaunch.restart.completed")
    parts = ("noticing", "stopping", "waiting", "starting")
    assert [event.metadata[f"seconds_{part}"] for part in parts] == [noticing, 4.0, 8.0, 16.0]
    assert event.metadata["seconds_total"] == noticing + 28.0
    assert f"restarted in {noticing + 28:g} s: {noticing:g} s noticing, 4 s stop" in caplog.text


def test_ranks_of_a_stop_are_global(recorder):
    play_one(recorder, "a change of the nodes")
    steps = [event.metadata for event in recorder.events if event.name == "plaunch.stop.step"]
    assert [
        (recorded["step"], recorded["stop_ranks"], recorded["signal_name"]) for recorded in steps
    ] == [
        ("signalled", "2", "SIGTERM"),
        ("killed", "2", "SIGKILL"),
        ("gone", "2", "SIGTERM"),
    ]


def test_the_lifetime_of_a_worker_ends_when_its_exit_is_seen(recorder, clock):
    for notification in START:
        recorder.add(notification)
    clock.now = 112.0
    exit_ = WorkerExit(WORKERS[0], 0, False, timestamp=1_000_110.5)
    recorder.add(notifications.WorkerExitSeen(GROUP, exit_))
    event = recorder.events[-1]
    assert event.metadata["lifetime"] == 10.5
    assert event.timestamp == 1_000_110.5
    assert event.monotonic == 110.5


def test_times_never_go_back(recorder, clock):
    clock.now = 200.0
    recorder.add(notifications.BeforeRendezvous(BEFORE))
    exit_ = WorkerExit(WORKERS[0], 0, False, timestamp=1_000_150.0)
    recorder.add(notifications.WorkerExitSeen(GROUP, exit_))
    assert recorder.events[-1].monotonic == 200.0


def test_a_failure_has_the_last_lines(recorder):
    lines = [f"line {number}\n" for number in range(30)]
    recorded = failure(last_lines=lines, message="x" * 2 * MAX_TEXT + "end")
    recorder.add(notifications.WorkersFailed(GROUP, {3: recorded}, 3))
    metadata = recorder.events[-1].metadata
    assert metadata["last_lines"].split("\n") == [f"line {number}" for number in range(10, 30)]
    assert metadata["message"].endswith("xend")
    assert len(metadata["message"]) < MAX_TEXT + 10
    assert (metadata["exit_code"], metadata["signal_name"]) == (-9, "SIGKILL")
    assert metadata["failed_host"] == "alpha"
    assert metadata["error_file"] is None


def test_a_failure_is_recorded_again_only_if_it_becomes_the_first(recorder):
    failures = {3: failure(), 2: failure(0, 1, 77)}
    recorder.add(notifications.WorkersFailed(GROUP, failures, 3))
    recorder.add(notifications.WorkersFailed(GROUP, failures, 3))
    assert len(recorder.events) == 1 + 2
    elsewhere = failure(0, 1, 9, host="beta")
    recorder.add(notifications.WorkersFailed(GROUP, {0: elsewhere, **failures}, 0))
    recorded = [
        (event.metadata["global_rank"], event.metadata["is_first"]) for event in recorder.events[1:]
    ]
    assert recorded == [(3, True), (2, False), (0, True), (3, False)]


def test_the_account_adds_up(recorder, clock):
    for notification in START:
        clock.now += 1
        recorder.add(notification)
    clock.now += 10
    recorder.log.finish(None)
    recorded = recorder.events[-1].metadata
    parts = ("waiting", "starting", "training", "stopping", "lost")
    assert sum(recorded[f"seconds_{part}"] for part in parts) == recorded["seconds_total"] == 15
    assert recorded["seconds_training"] == 11


# --- torchrun's -----------------------------------------------------------------------------------


def torchruns(recorder):
    made = map(to_torchrun, recorder.events)
    return [event for event in made if event is not None]


def test_the_order_of_a_good_run_is_torchruns(recorder):
    play_one(recorder, "success")
    recorded = [
        (event.name, event.source.value, event.metadata["global_rank"])
        for event in torchruns(recorder)
    ]
    prefix = "torchelastic.worker.status."
    assert recorded == [
        (f"{prefix}RENDEZVOUS", "AGENT", None),
        (f"{prefix}START", "WORKER", 2),
        (f"{prefix}START", "WORKER", 3),
        (f"{prefix}SUCCEEDED", "WORKER", 2),
        (f"{prefix}SUCCEEDED", "WORKER", 3),
        (f"{prefix}SUCCEEDED", "AGENT", None),
    ]
    assert torchruns(recorder)[0].metadata["duration_ms"] == 2500


@pytest.mark.parametrize(
    ("history", "state"),
    [
        ("failure with a restart, then for good", "SUCCEEDED"),  # it came to a result
        ("a spare that is not needed", "SUCCEEDED"),
        ("a signal", "FAILED"),
        ("closed by another node", "FAILED"),
        ("a bug", "FAILED"),
    ],
)
def test_the_end_of_an_agent_as_torchruns_state(recorder, history, state):
    play_one(recorder, history)
    assert torchruns(recorder)[-1].metadata["state"] == state


def test_torchruns_events_of_workers_that_failed_and_were_stopped(recorder):
    play_one(recorder, "failure with a restart, then for good")
    ends = [
        (event.metadata["global_rank"], event.metadata["state"], event.metadata["raw_error"])
        for event in torchruns(recorder)
        if event.metadata["state"] in ("FAILED", "TERMINATED")
    ]
    assert ends == [(3, "FAILED", "Signal 9 (SIGKILL) received by PID 78"), (2, "TERMINATED", None)]


def test_metadata_are_torchruns_to_the_letter(recorder):
    import json

    play(recorder, [*START, exited(WORKERS[1], -9, failed=failure())])
    event = torchruns(recorder)[3]
    recorded = dict(event.metadata)
    assert recorded.pop("hostname")
    inner = json.loads(recorded.pop("metadata"))
    assert inner == {
        "group_world_size": 3,
        "entry_point": "train.py",
        "local_rank": [1],
        "role_rank": [2],
        "role_world_size": [5],
        "exit_code": [-9],
        "worker_pid": [78],
    }
    assert recorded == {
        "run_id": "job",
        "global_rank": 3,
        "group_rank": 1,
        "worker_id": "78",
        "role": "trainer",
        "state": "FAILED",
        "total_run_time": 0.0,
        "rdzv_backend": "c10d",
        "raw_error": "Signal 9 (SIGKILL) received by PID 78",
        "agent_restarts": 0,
        "duration_ms": None,
    }


def test_keys_are_those_of_torch():
    """Compares with torch's own function, called with a minimal agent."""
    api = pytest.importorskip("torch.distributed.elastic.agent.server.api")

    class Agent:
        _total_execution_time = 0
        _remaining_restarts = 0
        _worker_group = type("Group", (), {"group_rank": 0, "group_world_size": 1})()

    class Spec:
        role, max_restarts = "r", 0
        rdzv_handler = type("H", (), {"get_run_id": lambda _: "j", "get_backend": lambda _: "b"})()

        def get_entrypoint_name(self):
            return "e"

    Agent._worker_group.spec = Spec()
    worker = api.Worker(0, 0, 0, 1, 1)
    theirs = api.SimpleElasticAgent._construct_event(
        Agent(), "START", api.EventSource.WORKER, worker=worker
    )
    ours = to_torchrun(
        Event("plaunch.worker.started", SCHEMA["plaunch.worker.started"].source, metadata={})
    )
    assert {*ours.metadata} == {*theirs.metadata}
    assert ours.name == theirs.name


def test_an_event_of_torchrun_is_unchanged():
    event = Event("torchelastic.worker.status.START", SCHEMA["plaunch.worker.started"].source)
    assert to_torchrun(event) is event
