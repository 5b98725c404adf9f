"""The handler: its threads, timeouts and messages. Membership has tests of its own."""

from __future__ import annotations

import gc
import os
import queue
import re
import threading
import time
import weakref

import pytest
from plaunch.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousTimeoutError,
    UsageError,
)
from plaunch.process import ProcessFailure
from plaunch.rendezvous import (
    ChangeKind,
    JobRendezvous,
    JobSettings,
    NodeSettings,
    RendezvousParameters,
)
from plaunch.restarts import Decision, RestartAction
from plaunch_membership import DynamicRendezvousHandler, StoreAccess
from plaunch_membership.keys import tickets
from plaunch_membership.options import WaitBounds

from helpers.calls import Call, at_once
from helpers.clock import Clock
from helpers.faults import raising
from helpers.ports import free_port
from helpers.programs import run_python
from helpers.waiting import wait_until

BOUND = 30.0
OFTEN = WaitBounds(query_interval=0.05)


@pytest.fixture
def create(board):
    """Make handlers over one board; all are shut down after the test."""
    handlers = []

    def create(
        min_nodes=1, max_nodes=1, *, connect=None, job=None, node=None, run_id="job", **options
    ):
        config = {
            "last_call_timeout": "0.1",
            "keep_alive_interval": "0.1",
            **{key: value for key, value in options.items() if not key.startswith("_")},
        }
        params = RendezvousParameters(
            "memory", "board", run_id, min_nodes, max_nodes, job=job or JobSettings(), **config
        )
        extra = {key[1:]: value for key, value in options.items() if key.startswith("_")}
        given = {name: extra.pop(name) for name in ("bounds", "clock") if name in extra}
        store = StoreAccess(connect or board.connect, "127.0.0.1", **extra)
        handler = DynamicRendezvousHandler(params, store, **given)
        if node is not None:
            handler.prepare(node)
        handlers.append(handler)
        return handler

    yield create
    board.down = False
    for handler in handlers:
        handler.leave()


def has_joined(handler):
    return handler.membership.part.joined is not None


def changes(handler):
    """Return the next changes; an outage also wakes, without one."""
    return wait_until(lambda: list(handler.changes()), "something happens")


def test_it_is_a_job_rendezvous(create):
    handler = create()
    assert isinstance(handler, JobRendezvous)
    assert (handler.get_backend(), handler.get_run_id()) == ("memory", "job")


def test_one_node(create):
    handler = create(node=NodeSettings(local_world_size=4))
    found = handler.next_rendezvous()
    assert (found.rank, found.world_size, found.attempt, found.reason) == (0, 1, 0, "")
    assert found.ranks.world_size == 4
    assert found.store is None
    assert found.bootstrap_store_info.master_addr == "127.0.0.1"
    handler.report_success()
    assert [change.kind for change in changes(handler)] == [ChangeKind.CLOSED]
    assert handler.is_closed()
    assert handler.verdict.outcome == "succeeded"
    with pytest.raises(Exception, match="succeeded"):
        handler.next_rendezvous()


def test_joining_again_during_a_round_forms_another(create):
    handler = create()
    first, second = handler.next_rendezvous(), Call(handler.next_rendezvous).get()
    assert [(one.round, one.attempt) for one in (first, second)] == [(0, 0), (1, 0)]
    assert "joined again" in second.reason


def test_nodes_read_each_others_texts(create):
    nodes = [create(2, 2), create(2, 2)]
    for call in [Call(node.next_rendezvous) for node in nodes]:
        call.get()
    for text in ("first", "second"):  # the last one counts
        for number, node in enumerate(nodes):
            node.texts.publish("stacks", f"{text} of {number}")
    for node in nodes:
        wait_until(
            lambda node=node: (
                sorted(node.texts.read("stacks", BOUND).values()) == ["second of 0", "second of 1"]
            ),
            "both texts are there",
        )
    assert nodes[0].texts.read("another/name", BOUND) == {}
    assert [*nodes[0].texts.read("another/name", BOUND, all_nodes=True).values()] == ["", ""]


def test_a_text_is_bounded_and_best_effort(create, board):
    handler = create()
    assert handler.texts.read("stacks", 0.05) == {}  # no node has joined
    handler.next_rendezvous()
    with pytest.raises(ValueError, match="16385 characters"):
        handler.texts.publish("stacks", "x" * 16385)
    handler.texts.publish("stacks", "x" * 16384)
    wait_until(lambda: handler.texts.read("stacks", BOUND), "the text is there")
    board.down = True
    assert handler.texts.read("stacks", 0.2) == {}


def test_all_nodes_of_the_round_receive_a_broadcast_once(create):
    """Nothing else of the job changes; listeners for other names are not called."""
    nodes, heard = [create(2, 2), create(2, 2)], queue.Queue()
    for number, node in enumerate(nodes):
        node.texts.listen("stacks", lambda text, number=number: heard.put((number, text)))
        node.texts.listen("another", pytest.fail)
    for call in [Call(node.next_rendezvous) for node in nodes]:
        call.get()
    for text in ("who is where", "and now"):
        nodes[1].texts.broadcast("stacks", text)
        nodes[1].texts.broadcast("of-nobody", "x")
        assert sorted(heard.get(timeout=BOUND) for _ in nodes) == [(0, text), (1, text)]
    assert [list(node.changes()) for node in nodes] == [[], []]
    nodes[0].report_success()
    nodes[1].report_success()
    assert [change.kind for change in changes(nodes[0])] == [ChangeKind.CLOSED]
    assert heard.empty()


def test_a_broadcast_between_rounds_reaches_no_node(create):
    node = create(1, 2)
    node.texts.listen("stacks", pytest.fail)
    node.texts.broadcast("stacks", "too early")
    node.next_rendezvous()
    node.texts.read("stacks", BOUND)  # earlier requests have been processed


@pytest.mark.parametrize(("name", "text"), [("a name", "x"), ("name", "x" * 496)])
def test_a_broadcast_is_bounded(create, name, text):
    with pytest.raises(ValueError, match="text at most 499 characters"):
        create().texts.broadcast(name, text)


def test_nothing_is_connected_before_the_first_round(create):
    def connect():
        pytest.fail("it connects too early")

    create(connect=connect)


def test_each_round_has_a_port_of_its_own(create):
    handler = create(node=NodeSettings(max_restarts=1))
    first = handler.next_rendezvous().bootstrap_store_info.master_port
    handler.report_failure([])
    second = handler.next_rendezvous().bootstrap_store_info.master_port
    assert first != second


def test_a_timeout_names_present_and_missing_nodes(create):
    here = [create(3, 3, join_timeout="0.5", job=JobSettings(node_rank=index)) for index in (0, 2)]
    calls = [Call(handler.next_rendezvous) for handler in here]
    for call in calls:
        with pytest.raises(RendezvousTimeoutError) as caught:
            call.get()
    text = str(caught.value)
    assert "needs 3 nodes" in text
    assert "missing: index 1" in text
    assert "--rdzv-id" in text


def test_a_timeout_with_enough_nodes_blames_no_missing_one(create):
    handler = create(1, 2, join_timeout="0.5", last_call_timeout="60")
    with pytest.raises(RendezvousTimeoutError) as caught:
        handler.next_rendezvous()
    text = str(caught.value)
    assert "1 have come, but no round was formed within 0.5 s" in text
    assert "last_call_timeout (60 s)" in text
    assert "the others" not in text


def test_an_unreachable_store_is_named_with_its_problem(create, board):
    board.down = True
    handler = create(join_timeout="0.3", _endpoint="board:1")
    with pytest.raises(RendezvousTimeoutError, match=r"board:1.*memory store is down"):
        handler.next_rendezvous()


def test_a_store_that_is_lost_again_before_the_nodes_have_met_again(create, board):
    """They have met before, so no node is missing."""
    nodes = [create(2, 2, unreachable_timeout="0.5") for _ in range(2)]
    at_once(*(node.next_rendezvous for node in nodes))
    board.wipe()
    for node in nodes:
        assert changes(node)[0].kind is ChangeKind.LOST
    node = nodes[0]
    call = Call(node.next_rendezvous)
    wait_until(lambda: node.membership.state.world is None, "it has found that the job is lost")
    board.down = True
    with pytest.raises(RendezvousConnectionError):
        call.get()


def test_a_spare_waits_longer_than_the_join_timeout(create):
    create(1, 1).next_rendezvous()
    spare = create(1, 1, join_timeout="0.2")
    call = Call(spare.next_rendezvous)
    time.sleep(0.6)
    spare.set_closed()
    with pytest.raises(RendezvousClosedError, match="was closed"):
        call.get()


def test_an_outage_that_lasts_too_long_is_reported_once(create, board):
    handler = create(unreachable_timeout="0.3")
    handler.next_rendezvous()
    board.down = True
    found = wait_until(lambda: list(handler.changes()), "it is reported")
    assert [change.kind for change in found] == [ChangeKind.UNREACHABLE]
    assert "memory store is down" in found[0].reason
    assert list(handler.changes()) == []


def test_a_short_outage_is_harmless(create, board):
    first, second = create(2, 2), create(2, 2)
    at_once(first.next_rendezvous, second.next_rendezvous)
    board.down = True
    time.sleep(0.4)
    board.down = False
    time.sleep(1.0)
    assert list(first.changes()) == list(second.changes()) == []
    first.send_notice(10)
    assert [(c.kind, c.signum) for c in changes(second)] == [(ChangeKind.NOTICE, 10)]


class Asked:
    """A store that does not answer a node's heartbeat, and the node's clock."""

    def __init__(self, create, store):
        self.clock, self._store = Clock(), store
        self.handler = create(connect=store.connect, keep_alive_interval="1", _clock=self.clock)
        self.handler.next_rendezvous()
        store.is_shut = True
        self.clock.now += 1.0
        self.handler.send_notice(10)  # wakes it
        assert store.asked.wait(BOUND)

    def tells(self, *steps):
        """Advance time step by step, and return the kinds of the changes that the agent sees."""
        received = []
        for seconds in steps:
            self.clock.now += seconds
            received += self.handler.changes()
        return [change.kind for change in received]

    def answer(self):
        self._store.open()
        wait_until(lambda: self.handler.job.threads.runners()[0].silent_for() == 0.0, "an answer")


def test_own_suspensions_do_not_count_as_silence_of_the_store(create, gate):
    asked = Asked(create, gate("beat"))
    assert asked.tells(1, 65, 1, 86400, 1, 65) == []
    asked.answer()
    assert asked.tells(65, 65) == []


def test_silence_counts_while_the_node_is_awake(create, gate):
    asked = Asked(create, gate("beat"))
    assert asked.tells(*[1] * 30, 65, *[1] * 25) == []  # three seconds of the suspension count
    assert asked.tells(*[1] * 3) == [ChangeKind.UNREACHABLE]
    asked.answer()


def test_a_suspension_does_not_count_as_waiting_for_nodes(create):
    clock, often = Clock(), WaitBounds(check_interval=0.01)
    first = create(2, 2, join_timeout="600", _clock=clock, _bounds=often)
    began = first.membership.clock()
    call = Call(first.next_rendezvous)
    wait_until(lambda: has_joined(first), "it waits")
    for pause in (3600.0, 1.0, 3600.0):
        clock.now += pause
        call.ended(0.05)  # some checks
    assert first.membership.clock() - began < 10.0
    create(2, 2).next_rendezvous()
    assert call.get().world_size == 2


def test_a_dead_connection_is_replaced(create, gate):
    """Over a cut cable nothing is received, not even an error."""
    cable, bounds = gate("beat"), WaitBounds(check_interval=0.05, stuck_after=0.3)
    opened = []

    def connect():
        opened.append(threading.current_thread().name)
        return cable.connect()

    handler = create(connect=connect, _bounds=bounds)
    handler.next_rendezvous()
    cable.is_shut = True
    writer = handler.job.threads.runners()[0]
    wait_until(lambda: writer.overdue() >= 0.4, "the writer is stuck")
    cable.is_shut = False

    def is_replaced():
        handler.changes()
        return opened.count("plaunch-writer") == 2

    wait_until(is_replaced, "another connection")
    handler.report_success()
    assert [change.kind for change in changes(handler)] == [ChangeKind.CLOSED]
    cable.open()


def test_a_job_that_the_store_has_lost_starts_again(create, board):
    """With new threads, while those of the previous incarnation may still run."""
    nodes = [create(2, 2) for _ in range(2)]
    for _ in range(5):
        formed = at_once(*(node.next_rendezvous for node in nodes))
        assert sorted(one.rank for one in formed) == [0, 1]
        board.down = True
        wait_until(lambda: all(node.job.threads.failing() for node in nodes), "both nodes notice")
        board.wipe()
        board.down = False
        for node in nodes:
            assert changes(node)[0].kind is ChangeKind.LOST


def test_shutdown_leaves_no_thread_or_connection(create, board):
    create().leave()
    # Not their number: threads of other tests may end meanwhile.
    before, threads = set(os.listdir("/proc/self/fd")), set(threading.enumerate())
    released = []
    handler = create(run_id="another", _is_host=True, _release=lambda: released.append(True))
    handler.next_rendezvous()
    handler.report_success()
    changes(handler)
    assert handler.shutdown()
    assert handler.shutdown()
    assert handler.leave()
    assert released == [True]
    assert set(os.listdir("/proc/self/fd")) <= before
    wait_until(lambda: set(threading.enumerate()) <= threads, "its threads have ended")
    assert handler.fileno() == -1
    assert list(handler.changes()) == []


def test_leaving_wakes_a_call_that_waits_for_a_round(create):
    handler = create(2, 2)
    call = Call(handler.next_rendezvous)
    wait_until(lambda: has_joined(handler), "it waits")
    assert handler.leave()
    with pytest.raises(RendezvousClosedError, match="left job 'job'"):
        call.get()


def ends_at(board, part):
    """Connections over which the store goes down when a key that contains `part` is written."""

    def checked(operation):
        def call(key, *args):
            if part in key:
                board.down = True
            return operation(key, *args)

        return call

    def connect():
        store = board.connect()
        store.add, store.compare_set = checked(store.add), checked(store.compare_set)
        return store

    return connect


def test_a_store_that_ends_with_the_job_is_a_normal_end(create, board):
    """Its host has read this node's departure before this node knows that it was written."""
    handler = create(connect=ends_at(board, "/byes"))
    handler.next_rendezvous()
    handler.report_success()
    assert [change.kind for change in changes(handler)] == [ChangeKind.CLOSED]
    assert handler.shutdown()
    assert board.down


def test_a_store_that_ends_before_this_node_is_a_normal_end(create, board, caplog):
    """As when all nodes are stopped, and the store's host is the fastest."""
    caplog.set_level("INFO", "plaunch")
    handler = create(connect=ends_at(board, "/state/2"))
    handler.next_rendezvous()
    assert handler.leave()
    assert board.down
    assert "the other nodes could not be notified that this node leaves job 'job'" in caplog.text
    assert "memory store is down" in caplog.text


def test_the_host_stays_until_the_others_know(create, gate):
    slow = gate("wait")
    host, other = create(2, 2, _is_host=True), create(2, 2, connect=slow.connect)
    at_once(host.next_rendezvous, other.next_rendezvous)
    slow.is_shut = True
    host.set_closed()
    changes(host)
    end = Call(host.shutdown)
    assert not end.ended(0.3)
    slow.open()
    assert end.get()


def test_the_host_stays_longer_for_connected_processes(create, gate):
    paused, guests, clock = gate("wait", "beat"), ["one"], Clock()
    host = create(2, 2, _is_host=True, _has_guests=lambda: bool(guests), _clock=clock)
    other = create(2, 2, connect=paused.connect)
    at_once(host.next_rendezvous, other.next_rendezvous)
    paused.is_shut = True
    host.set_closed()
    changes(host)
    end = Call(host.shutdown)
    for _ in range(12):
        clock.now += 1.0
        assert not end.ended(0.05)
    guests.clear()
    assert end.get()
    paused.open()


def test_a_finished_host_stays_for_nodes_that_are_not_finished(create):
    """Its agent has waited as long as it may, and shuts down."""
    host, other = create(2, 2, _is_host=True), create(2, 2)
    at_once(host.next_rendezvous, other.next_rendezvous)
    host.report_success()
    end = Call(host.shutdown)
    assert not end.ended(0.3)
    assert list(other.changes()) == []
    other.report_success()
    assert end.get()
    assert host.verdict.outcome == "succeeded"


def test_an_excluded_host_that_is_stopped_warns_about_the_store(create, caplog):
    host, other = create(2, 2, _is_host=True), create(2, 2)
    at_once(host.next_rendezvous, other.next_rendezvous)
    host.announce_leave("it is not healthy", is_excluded=True)
    end = Call(host.shutdown)
    assert not end.ended(0.3)
    host.leave()
    end.get()
    assert "the store of job 'job' ends with this launcher, which hosts it" in caplog.text


def test_the_default_run_id_on_a_permanent_store_is_warned_about(create, caplog):
    create(run_id="none", _outlives_job=True)
    assert "--rdzv-id" in caplog.text
    caplog.clear()
    create(run_id="mine", _outlives_job=True)
    create(run_id="none")
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"join_timeot": "5"}, "join_timeout"),
        ({"join_timeout": "soon"}, "not a number"),
        ({"join_timeout": "0"}, "above 0"),
        ({"last_call_timeout": "-1"}, "from 0 up to"),
        ({"cas_backoff_max_seconds": "-1"}, "from 0 up to"),
        ({"cas_backoff_max_seconds": "inf"}, "from 0 up to"),
        ({"keep_alive_max_attempt": "2.5"}, "not an integer"),
        ({"token_file": "/no/such/file"}, "/no/such/file"),
    ],
)
def test_invalid_options(create, options, says):
    with pytest.raises(UsageError, match=says):
        create(**options)


def test_options_of_torchrun_without_effect_are_warned_about(create, caplog):
    create(heartbeat_timeout="5")
    assert "heartbeat_timeout" in caplog.text


def test_torchruns_backoff_gets_no_warning(create, caplog):
    create(cas_backoff_max_seconds="0.25")
    assert caplog.text == ""


def test_later_garbage_ends_the_job_by_name(create, board):
    handler = create()
    handler.next_rendezvous()
    key = handler.membership.keys.state(handler.membership.state.version + 1)
    board.write({key: b"garbage"})
    found = changes(handler)
    assert [change.kind for change in found] == [ChangeKind.UNREACHABLE]
    assert key in found[0].reason


def test_garbage_in_the_store_is_named(create, board):
    board.write({"plaunch/job/job": b"\x80garbage"})
    with pytest.raises(RendezvousClosedError, match="plaunch/job/job"):
        create().next_rendezvous()


# --- what a waiting node reports ------------------------------------------------------------------


def waits(handler, text):
    """Wait until `describe_wait` returns this."""
    Call(handler.next_rendezvous)
    wait_until(lambda: re.fullmatch(text, handler.describe_wait()), text)


def test_the_missing_nodes_are_described(create):
    first = create(3, 4, job=JobSettings(node_rank=1), _bounds=OFTEN)
    host = re.escape(os.uname().nodename)
    came = rf"3 to 4 nodes until [\d:]+; 1 came: {host} \(index 1\); missing: index 0, 2"
    waits(first, rf"{came}; the store is at board")
    second = create(3, 4, _bounds=OFTEN)
    Call(second.next_rendezvous)
    for handler in (first, second):
        wait_until(lambda: "; 2 came: " in handler.describe_wait(), "both know of two")  # noqa: B023


def test_the_host_of_the_store_is_described(create):
    host, other = create(3, 3, _is_host=True, _bounds=OFTEN), create(3, 3, _bounds=OFTEN)
    name = re.escape(os.uname().nodename)
    waits(host, r"3 nodes until [\d:]+; .*; the store is at board, hosted by this node")
    waits(other, rf"3 nodes until [\d:]+; .*; the store is at board, hosted by {name}")


def test_waiting_costs_the_store_little(create, board):
    """However often the agent calls it, the store is queried once in a while."""
    opened = []

    def connect():
        opened.append(board.connect())
        return opened[-1]

    handler = create(2, 2, connect=connect, keep_alive_interval="100")
    Call(handler.next_rendezvous)
    wait_until(lambda: has_joined(handler), "it has joined")
    wait_until(lambda: "1 came" in handler.describe_wait(), "it has come itself")
    before = opened[0].operations.total()  # of the writer
    for _ in range(20):
        handler.describe_wait()
    handler.texts.read("nothing", BOUND)  # earlier requests have been processed
    assert opened[0].operations.total() == before


def test_a_spare_describes_that_there_is_no_place(create):
    first, second = create(1, 1), create(1, 1)
    first.next_rendezvous()
    waits(second, "a place in job 'job', which is full")


class Delay:
    """A restart policy with a delay before each restart."""

    def __init__(self, seconds):
        self.seconds = seconds

    def decide(self, failure, history):
        return Decision(RestartAction.RESTART, "the disk may be back", delay=self.seconds)


def test_the_delay_of_a_restart_and_its_reason_are_described(create):
    job = JobSettings(restart_policy=Delay(100.0))
    first, second = (create(2, 2, job=job) for _ in range(2))
    at_once(first.next_rendezvous, second.next_rendezvous)
    first.report_failure({0: ProcessFailure(0, 1, 17, "")})
    text = r"the next round of job 'job', in at most (100|\d\d) s: rank 0 .* exit code 17.*; "
    for node in (first, second, create(2, 2, job=job)):  # one arrives meanwhile
        waits(node, text + "the disk may be back")


def test_the_delay_of_a_restart_does_not_count_as_waiting_for_nodes(create):
    job = JobSettings(restart_policy=Delay(1.0))
    nodes = [create(2, 2, job=job, join_timeout="0.5") for _ in range(2)]
    at_once(*(node.next_rendezvous for node in nodes))
    nodes[1].report_failure({1: ProcessFailure(0, 1, 17, "")})
    again = at_once(*(node.next_rendezvous for node in nodes))
    assert [found.attempt for found in again] == [1, 1]


def test_the_wait_for_further_arrivals_is_described(create):
    create(1, 3).next_rendezvous()
    late = create(1, 3, arrival_delay="100")
    waits(late, r"the next round of job 'job', in \d\d s or as soon as 3 nodes have come")


def test_nodes_that_arrive_late_are_in_the_same_round(create):
    """The last one fills the round, so that no node waits for the delay."""
    node = NodeSettings(stop_timeout=BOUND)  # the others wait for it
    first = create(1, 4, last_call_timeout="0", arrival_delay="inf", node=node)
    assert first.next_rendezvous().round == 0
    late = [create(1, 4, arrival_delay="inf") for _ in range(3)]
    calls = [Call(handler.next_rendezvous) for handler in late]
    assert [change.kind for change in changes(first)] == [ChangeKind.ARRIVED]
    again = [first.next_rendezvous(), *(call.get() for call in calls)]
    assert {(found.round, found.world_size) for found in again} == {(1, 4)}


def test_a_node_that_is_not_needed_any_more_is_described(create):
    first = create(1, 2, last_call_timeout="0.1")
    first.next_rendezvous()
    first.membership.part.wants_round = True  # otherwise its success would end the job
    first.job.threads.connect().add(tickets(first.membership.keys.done(0)), 1)
    waits(create(1, 2), "a place in job 'job'; some of its nodes have finished")


@pytest.mark.parametrize(
    ("names_store", "text"),
    [
        (False, "the store at board: no board listens"),
        (True, "the store: no board listens"),
    ],
)
def test_a_store_without_answers_is_described(create, names_store, text):
    error = RendezvousConnectionError("no board listens", names_store=names_store)
    handler = create(connect=raising(error))
    assert handler.describe_wait() == "the store at board"
    waits(handler, text)


def test_a_node_that_never_reached_the_store_leaves_cleanly(create):
    asked, goes_on = threading.Event(), threading.Event()

    def connect():
        asked.set()
        goes_on.wait(60)
        raise RendezvousConnectionError("too late")

    handler = create(connect=connect, close_timeout=0.1)
    Call(handler.next_rendezvous)
    assert asked.wait(60)
    try:
        assert handler.leave()
    finally:
        goes_on.set()


def test_the_time_to_start_bounds_the_wait_for_nodes(create):
    """But the launch has time to end the first wait itself, and to report it."""
    bounds = WaitBounds(start_margin=0.5)
    handler = create(2, 2, job=JobSettings(start_timeout=0.3), _endpoint="a:1", _bounds=bounds)
    for least in (0.8, 0.3):
        began = time.monotonic()
        with pytest.raises(RendezvousTimeoutError, match=r"1 came within 0.3 s.*point \(a:1\)$"):
            handler.next_rendezvous()
        assert time.monotonic() - began >= least
    given = create(2, 2, job=JobSettings(start_timeout=60.0), join_timeout="0.2", run_id="b")
    with pytest.raises(RendezvousTimeoutError, match=r"1 came within 0.2 s"):
        given.next_rendezvous()


def test_a_store_may_have_no_endpoint(board):
    params = RendezvousParameters("memory", "", "job", 2, 2, join_timeout="0.1")
    handler = DynamicRendezvousHandler(params, StoreAccess(board.connect, "127.0.0.1"))
    with pytest.raises(RendezvousTimeoutError, match=r"with the same --rdzv-id$"):
        handler.next_rendezvous()
    handler.leave()


def test_arguments_from_before_store_access_still_work(board):
    params = RendezvousParameters("memory", "", "job", 1, 1)
    handler = DynamicRendezvousHandler(params, board.connect, address="127.0.0.9", endpoint="a:1")
    assert handler.describe_wait() == "the store at a:1"
    assert handler.next_rendezvous().bootstrap_store_info.master_addr == "127.0.0.9"
    handler.leave()


def test_the_ports_of_rounds_are_from_the_range(create):
    port = free_port()
    handler = create(job=JobSettings(port_range=(port, port)))
    assert handler.next_rendezvous().bootstrap_store_info.master_port == port


# --- closing, and another job ---------------------------------------------------------------------


def test_a_handler_is_closed_at_once(create):
    handler = create()
    handler.next_rendezvous()
    handler.set_closed()
    assert handler.is_closed()
    with pytest.raises(RendezvousClosedError):
        handler.next_rendezvous()


def test_a_handler_that_has_not_joined_closes_the_job_of_all(create):
    handler = create()
    handler.set_closed()
    assert handler.is_closed()
    with pytest.raises(RendezvousClosedError, match="closed by this node"):
        handler.next_rendezvous()
    wait_until(lambda: handler.verdict is not None, "the store knows")
    with pytest.raises(RendezvousClosedError, match="was closed"):
        create().next_rendezvous()


def test_closing_after_the_shutdown_does_nothing(create):
    handler = create()
    handler.shutdown()
    handler.set_closed()
    assert not handler.is_closed()


def finished(nodes, end=lambda node: node.report_success()):
    """Return handlers whose job is over."""
    at_once(*(node.next_rendezvous for node in nodes))
    for node in nodes:
        end(node)
    for node in nodes:
        wait_until(lambda node=node: node.verdict is not None, "the job is over")
    return nodes


def test_a_node_that_has_not_joined_ends_the_job_of_all(create):
    """As at the request for the end while its health checks run."""
    late, *nodes = (create(2, 3) for _ in range(3))
    at_once(*(node.next_rendezvous for node in nodes))
    late.end_job("enough")
    for node in (*nodes, late):
        wait_until(lambda node=node: node.verdict is not None, "all know")
        assert (node.verdict.outcome, node.verdict.reason) == ("stopped", "enough")


def test_an_agent_that_runs_again_has_another_job(create):
    nodes = finished([create(2, 2), create(2, 2)])
    for node in nodes:
        node.prepare(NodeSettings("trainer", 3, 5, stop_timeout=1.0))
    assert not any(node.is_closed() for node in nodes)
    rounds = at_once(*(node.next_rendezvous for node in nodes))
    assert {found.ranks.world_size for found in rounds} == {6}
    assert {(found.attempt, found.round) for found in rounds} == {(0, 0)}
    nodes[0].report_success()
    nodes[1].report_success()
    for node in nodes:
        wait_until(lambda node=node: node.verdict is not None, "this one is over, too")


def test_another_node_still_learns_how_the_first_job_ended(create):
    first, second = finished([create(2, 2), create(2, 2)])
    first.prepare(NodeSettings("default", 1, 0, stop_timeout=1.0))
    again = Call(first.next_rendezvous)
    assert second.verdict.outcome == "succeeded"
    second.prepare(NodeSettings("default", 1, 0, stop_timeout=1.0))
    assert second.next_rendezvous().world_size == again.get().world_size == 2


def test_a_closed_job_is_not_followed_by_another(create):
    [node] = finished([create()], lambda node: node.set_closed())
    node.prepare(NodeSettings("default", 1, 0, stop_timeout=1.0))
    with pytest.raises(RendezvousClosedError):
        node.next_rendezvous()


def test_another_handler_of_the_first_job_gets_its_verdict(create):
    finished([create()])
    with pytest.raises(RendezvousClosedError, match="start a new job under another run id"):
        create().next_rendezvous()


def test_a_handler_that_closes_and_ends_at_once_has_closed_the_job(create):
    handler = create()
    handler.set_closed()
    assert handler.shutdown()
    with pytest.raises(RendezvousClosedError, match="was closed"):
        create().next_rendezvous()


def test_a_handler_that_closes_a_job_it_cannot_reach_ends(create, board):
    board.down = True
    handler = create()
    handler.set_closed()
    assert handler.shutdown()
    assert handler.is_closed()


LEFT_OPEN = """
import atexit, os, threading
atexit.register(lambda: print([t.name for t in threading.enumerate() if t.daemon]))  # runs last
from plaunch.rendezvous import RendezvousParameters
from plaunch_membership import DynamicRendezvousHandler, StoreAccess
from plaunch_membership.testing import MemoryBoard
params = RendezvousParameters("memory", "board", "job", 1, 1)
handler = DynamicRendezvousHandler(params, StoreAccess(MemoryBoard().connect, "127.0.0.1"))
handler.next_rendezvous()
"""


def test_the_exit_of_the_process_ends_the_threads():
    assert run_python("-c", LEFT_OPEN).stdout == "[]\n"


def test_the_exit_of_a_forked_process_ends_nothing():
    program = LEFT_OPEN + (
        "if os.fork():\n"
        "    os.wait()\n"
        "    print(handler.is_closed(), handler.membership.part.leaving == '', flush=True)\n"
    )
    assert run_python("-c", program).stdout == "[]\nFalse True\n[]\n"


def test_a_handler_that_was_shut_down_has_nothing_to_end(board):
    """So it is not kept until the process exits."""
    params = RendezvousParameters("memory", "board", "job", 1, 1)
    handler = DynamicRendezvousHandler(params, StoreAccess(board.connect, "127.0.0.1"))
    handler.next_rendezvous()
    handler.shutdown()
    kept = weakref.ref(handler)
    del handler

    def is_gone():
        gc.collect()
        return kept() is None

    wait_until(is_gone, "it is gone")
