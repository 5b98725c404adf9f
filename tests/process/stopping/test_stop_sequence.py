"""The stop sequence's decisions, against a clock and processes that are made up."""

from __future__ import annotations

import logging
import signal
from dataclasses import dataclass, field

import pytest
from plaunch.process.stopping.stop_sequence import StopSequence

TERM, INT, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGKILL


class FakeSession:
    """A worker that dies of the signals in `dies_of`, `delay` seconds after the first of them."""

    def __init__(
        self,
        world,
        rank,
        *,
        dies_of=(TERM, KILL),
        delay=0.0001,
        dead_at=None,
        leaves=(),
        orphans_die_of=(TERM, KILL),
        is_wrapper=False,
        daemons=(),
        refuses=(),
        hold="",
    ):
        self.world = world
        self.rank = rank
        self.pid = 1000 + rank
        self.dies_of = set(dies_of)
        self.delay = delay
        self.dead_at = dead_at
        self.orphans = list(leaves)
        self.orphans_die_of = set(orphans_die_of)
        self.is_wrapper = is_wrapper
        self.daemons = set(daemons)
        self.asked_rest = is_wrapper
        self.refuses = set(refuses)  # the processes of another user's
        self.hold = hold

    def ask_to_end(self, signum):
        self._note(signum, "session" if self.is_wrapper else "leader")
        self._receive(signum)
        return self.is_wrapper

    def ask_rest_to_end(self, signum):
        if self.asked_rest:
            return
        self.asked_rest = True
        self._note(signum, "rest")
        self._clear(signum)

    def describe_hold(self):
        return self.hold

    def runs_program(self):
        return not self.daemons.issuperset(self.orphans)

    def kill(self):
        self._note(KILL, "all")
        self._receive(KILL)
        self._clear(KILL)
        return self.refuses

    def _note(self, signum, scope):
        self.world.sent.append((self.world.now, self.rank, signum.name, scope))

    def _clear(self, signum):
        if signum in self.orphans_die_of:
            self.orphans = [pid for pid in self.orphans if pid in self.refuses]

    def survivors(self):
        assert not self.is_alive(), "asked about a worker that has not ended"
        return list(self.orphans)

    def is_alive(self):
        return self.dead_at is None or self.world.now < self.dead_at

    def _receive(self, signum):
        if self.dead_at is None and signum in self.dies_of:
            self.dead_at = self.world.now + self.delay


class World:
    def __init__(self):
        self.now = 0.0
        self.sent = []
        self.sessions = {}

    def worker(self, **how):
        rank = len(self.sessions)
        self.sessions[rank] = FakeSession(self, rank, **how)
        return self.sessions[rank]

    def sequence(self, *, death_sig=TERM, grace=30.0, **options):
        return StopSequence(
            self.sessions,
            name="trainer",
            death_sig=death_sig,
            grace=grace,
            clock=lambda: self.now,
            **options,
        )

    def live(self):
        return [rank for rank, session in self.sessions.items() if session.is_alive()]

    def climb(self, sequence, until=1000.0):
        """Drive the sequence as a context does: woken by deadlines and by workers that end."""
        steps = 0
        while (delay := sequence.step(self.live())) is not None:
            assert delay >= 0
            steps += 1
            assert steps < 10_000, "the sequence has no pause"
            ends = [s.dead_at for s in self.sessions.values() if s.dead_at and s.dead_at > self.now]
            self.now = min([self.now + max(delay, 1e-6), *ends])
            assert self.now < until, "the sequence does not end"
        return sequence

    def signals(self, rank=None):
        return [(name, scope) for _, who, name, scope in self.sent if rank in (None, who)]


@pytest.fixture
def world():
    return World()


@dataclass(frozen=True)
class Stop:
    """Workers that are stopped: what each of them gets, how long it takes, and who is left."""

    workers: list
    options: dict
    signals: list
    seconds: float
    stuck: dict = field(default_factory=dict)


SOFT, HARD, REST = ("SIGTERM", "leader"), ("SIGKILL", "all"), ("SIGTERM", "rest")
DEAF = {"dies_of": [KILL]}
IMMORTAL = {"dies_of": []}
GONE = {"dead_at": 0.0, "leaves": [77]}
LASTING = {"orphans_die_of": []}
LOOKS = 0.0075  # seconds until it is seen that nothing of the orphans is left

STOPS = {
    "a cooperative worker gets the soft signal only, and only itself": Stop([{}], {}, [[SOFT]], 0),
    "the soft signal is the one asked for": Stop(
        [{"dies_of": [INT]}], {"death_sig": INT}, [[("SIGINT", "leader")]], 0
    ),
    "it ends as soon as the last worker has ended": Stop(
        [{"delay": 3}, {"delay": 7}], {"grace": 600}, [[SOFT], [SOFT]], 7
    ),
    "who ignores the soft signal is killed with its group after the grace": Stop(
        [DEAF, {}], {"grace": 5}, [[SOFT, HARD], [SOFT]], 5
    ),
    "no grace means SIGKILL at once": Stop([DEAF], {"grace": 0}, [[SOFT, HARD]], 0),
    "SIGKILL as the soft signal goes to the group at once": Stop(
        [{}], {"death_sig": KILL}, [[HARD]], 0
    ),
    "what outlives SIGKILL is named after a bound": Stop(
        [IMMORTAL, {}], {"grace": 5, "kill_wait": 4}, [[SOFT, HARD], [SOFT]], 9, {0: [1000]}
    ),
    # Another worker has left something behind by then, which is still waited for.
    "who was given up is no reason to look all the time": Stop(
        [IMMORTAL, {**DEAF, **LASTING, "delay": 3, "leaves": [77]}],
        {"grace": 5, "kill_wait": 4},
        [[SOFT, HARD], [SOFT, HARD, HARD]],
        12,
        {0: [1000], 1: [77]},
    ),
    "a worker that may not be signalled is not waited for after its grace": Stop(
        [{**IMMORTAL, "refuses": [1000]}, {**DEAF, "delay": 1}],
        {"grace": 5, "kill_wait": 4},
        [[SOFT, HARD], [SOFT, HARD]],
        6,
        {0: [1000]},
    ),
    "what was orphaned and may not be signalled is not waited for": Stop(
        [{**GONE, "leaves": [77, 78], "orphans_die_of": [KILL], "refuses": [77]}],
        {"kill_wait": 4},
        [[REST, HARD]],
        0.5 + LOOKS,
        {0: [77]},
    ),
    "what a worker orphaned gets the soft signal too": Stop([GONE], {}, [[REST]], LOOKS),
    "what was orphaned and ignores it is killed in under a second": Stop(
        [{**GONE, "leaves": [77, 78], "orphans_die_of": [KILL]}],
        {"grace": 600},
        [[REST, HARD]],
        0.5 + LOOKS,
    ),
    "what was orphaned and outlives SIGKILL is named": Stop(
        [{**GONE, **LASTING}], {"kill_wait": 4}, [[REST, HARD]], 4.5, {0: [77]}
    ),
    "who is abandoned gets SIGKILL at once and is not waited for": Stop(
        [IMMORTAL, {"delay": 3}], {"abandoned": [0]}, [[HARD], [SOFT]], 3, {0: [1000]}
    ),
    "who is abandoned and ends after all is not stuck": Stop(
        [{"delay": 1}, {"delay": 3}], {"abandoned": [0]}, [[HARD], [SOFT]], 3
    ),
}


@pytest.mark.parametrize("stop", STOPS.values(), ids=STOPS)
def test_the_signals_of_each_process_and_those_that_remain(world, stop):
    for worker in stop.workers:
        world.worker(**worker)
    sequence = world.climb(world.sequence(**stop.options))
    assert [world.signals(rank) for rank in world.sessions] == stop.signals
    assert world.now == pytest.approx(stop.seconds, rel=5e-4, abs=1e-3)
    assert sequence.stuck == stop.stuck


def test_escalating_skips_the_rest_of_the_grace(world):
    world.worker(dies_of=[KILL])
    sequence = world.sequence(grace=30)
    sequence.step(world.live())
    world.now = 2.0
    sequence.escalate()
    world.climb(sequence)
    assert world.signals() == [("SIGTERM", "leader"), ("SIGKILL", "all")]
    assert world.now < 2.001


def test_escalating_before_the_first_step_skips_the_soft_signal(world, caplog):
    world.worker()
    sequence = world.sequence()
    sequence.escalate()
    world.climb(sequence)
    assert world.signals() == [("SIGKILL", "all")]
    assert caplog.messages == ["trainer: sending SIGKILL to local rank 0 at once"]


def test_sigkill_is_sent_once_however_often_it_is_stepped(world):
    world.worker(dies_of=[KILL], delay=2)
    sequence = world.sequence(grace=1)
    for second in range(40):
        world.now = second / 10
        sequence.step(world.live())
    assert world.signals().count(("SIGKILL", "all")) == 1


def test_children_get_no_signal_while_their_worker_lives(world):
    world.worker(delay=10, leaves=[77])
    world.climb(world.sequence(grace=30))
    assert world.signals() == [("SIGTERM", "leader"), ("SIGTERM", "rest")]
    assert next(at for at, _, _, scope in world.sent if scope == "rest") == pytest.approx(10)


def test_what_one_worker_orphaned_is_not_spared_for_the_grace_of_another(world):
    world.worker(leaves=[77], orphans_die_of=[KILL], dead_at=0.0)
    world.worker(dies_of=[KILL])
    world.climb(world.sequence(grace=20))
    killed_at = [at for at, rank, name, _ in world.sent if (rank, name) == (0, "SIGKILL")]
    assert killed_at == [pytest.approx(0.5)]
    assert world.now == pytest.approx(20, abs=0.01)


def test_what_evades_sigkill_as_another_process_gets_it_again(world):
    """It has forked and ended before the signal came; it is not one that outlives SIGKILL."""
    session = world.worker(leaves=[77], orphans_die_of=[], dead_at=0.0)
    kill = session.kill

    def evade():
        refused = kill()
        [pid] = session.orphans
        session.orphans = [pid + 1] if pid < 80 else []
        return refused

    session.kill = evade
    sequence = world.climb(world.sequence(kill_wait=4))
    assert world.signals() == [("SIGTERM", "rest")] + 4 * [("SIGKILL", "all")]
    assert sequence.stuck == {}
    assert world.now < 1


def test_processes_that_evade_sigkill_are_given_up(world):
    session = world.worker(leaves=[77], orphans_die_of=[], dead_at=0.0)
    survivors = session.survivors
    session.survivors = lambda: [survivors()[0] + int(world.now * 1000)]
    sequence = world.climb(world.sequence(kill_wait=4))
    assert list(sequence.stuck) == [0]
    assert world.now == pytest.approx(4.5, abs=0.05)


def test_nothing_happens_when_all_have_ended_cleanly(world, caplog):
    for _ in range(3):
        world.worker(dead_at=0.0)
    with caplog.at_level(logging.INFO, "plaunch"):
        assert world.sequence().step([]) is None
    assert world.sent == []
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("workers", "grace", "said"),
    [
        ([{"delay": 0.2}], 30, []),  # everybody ends quickly
        (
            [DEAF, {}, DEAF, DEAF],
            30,
            [
                "waiting for local ranks 0,2-3 to end after SIGTERM; SIGKILL in 29 s",
                "local ranks 0,2-3 did not end within 30 s of SIGTERM; sending SIGKILL",
            ],
        ),
        (
            [{**DEAF, "hold": "traced by gdb (pid 7)"}, DEAF],
            30,
            [
                "waiting for local ranks 0-1 (local rank 0 is traced by gdb (pid 7)) to end after "
                "SIGTERM; SIGKILL in 29 s",
                "local ranks 0-1 did not end within 30 s of SIGTERM; sending SIGKILL",
            ],
        ),
        (
            [DEAF],
            0.5,
            [
                "waiting for local rank 0 to end after SIGTERM; SIGKILL in 0 s",
                "local rank 0 did not end within 0.5 s of SIGTERM; sending SIGKILL",
            ],
        ),
    ],
)
def test_the_processes_that_a_stop_waits_for_are_logged_once(world, caplog, workers, grace, said):
    for worker in workers:
        world.worker(**worker)
    with caplog.at_level(logging.INFO, "plaunch"):
        world.climb(world.sequence(grace=grace))
    assert caplog.messages == [f"trainer: {text}" for text in said]


def test_the_delay_is_the_time_to_the_next_action(world):
    world.worker(dies_of=[KILL])
    sequence = world.sequence(grace=30, kill_wait=4)
    assert sequence.step([0]) == pytest.approx(1)  # the notice
    world.now = 1.0
    assert sequence.step([0]) == pytest.approx(29)  # SIGKILL
    world.now = 30.0
    assert sequence.step([0]) == pytest.approx(4)  # giving up


def test_an_abandoned_worker_without_orphans_is_given_up_at_once(world):
    world.worker(dies_of=[])
    sequence = world.sequence(grace=30, abandoned=[0])
    assert sequence.step([0]) is None
    assert sequence.stuck == {0: [1000]}


def test_what_a_killed_worker_leaves_behind_has_had_its_grace(world):
    session = world.worker(dies_of=[KILL], leaves=[77], orphans_die_of=[KILL])
    kill = session.kill

    def kill_the_worker_alone():
        session.kill = kill
        refused = kill()
        session.orphans = [77]
        return refused

    session.kill = kill_the_worker_alone
    world.climb(world.sequence(grace=5))
    assert world.signals() == [("SIGTERM", "leader"), ("SIGKILL", "all"), ("SIGKILL", "all")]
    assert world.now == pytest.approx(5, abs=0.05)


def test_the_program_that_a_shell_ran_has_the_whole_grace(world):
    shell = world.worker(is_wrapper=True, leaves=[77], orphans_die_of=[KILL])
    sequence = world.sequence(grace=30)
    sequence.step(world.live())
    world.now = 20.0
    sequence.step(world.live())
    assert world.signals() == [("SIGTERM", "session")], "it was killed, or asked twice"
    shell.orphans.clear()
    world.climb(sequence)
    assert world.now < 20.2
    assert sequence.stuck == {}


def test_the_program_that_a_shell_ran_is_killed_after_the_grace(world, caplog):
    world.worker(is_wrapper=True, leaves=[77], orphans_die_of=[KILL])
    world.climb(world.sequence(grace=30))
    assert world.signals() == [("SIGTERM", "session"), ("SIGKILL", "all")]
    assert world.now == pytest.approx(30, abs=0.2)
    assert caplog.messages == [
        "trainer: waiting for processes that local rank 0 started to end after SIGTERM; "
        "SIGKILL in 29 s"
    ]


def test_what_a_shell_leaves_without_a_program_has_no_grace(world):
    """Its program has ended before it; what is left is a daemon."""
    world.worker(is_wrapper=True, leaves=[78], daemons=[78], orphans_die_of=[KILL])
    world.climb(world.sequence(grace=30))
    assert world.signals()[-1] == ("SIGKILL", "all")
    assert world.now < 0.9


def test_a_stop_does_not_say_that_it_waits_for_daemons_of_a_shell(world, caplog):
    leaves = {"leaves": [77, 78], "daemons": [78], "orphans_die_of": [KILL]}
    shell = world.worker(is_wrapper=True, **leaves)
    sequence = world.sequence(grace=30)
    for now in (0.0, 0.8):
        world.now = now
        sequence.step(world.live())
    shell.orphans.remove(77)  # the program; the next notice would come before the SIGKILL
    world.now = 0.9
    sequence.step(world.live())
    world.climb(sequence)
    assert caplog.messages == []


def test_orphans_of_a_shells_program_are_killed_soon_after_it(world):
    leaves = {"leaves": [77, 78], "daemons": [78], "orphans_die_of": [KILL]}
    shell = world.worker(is_wrapper=True, **leaves)
    sequence = world.sequence(grace=30)
    sequence.step(world.live())
    world.now = 3.0
    sequence.step(world.live())
    assert ("SIGKILL", "all") not in world.signals()
    shell.orphans.remove(77)
    world.climb(sequence)
    assert world.signals()[-1] == ("SIGKILL", "all")
    assert world.now == pytest.approx(3.5, abs=0.2)


# --- what is told of it ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "options", "told"),
    [
        (
            [{"delay": 0.2}, {"delay": 0.3}],
            {},
            [("signalled", "SIGTERM", (0, 1), 0), ("gone", "SIGTERM", (0, 1), 0.3)],
        ),
        (
            [{"delay": 0.2}, {**DEAF, "delay": 0.5}],
            {"grace": 5},
            [
                ("signalled", "SIGTERM", (0, 1), 0),
                ("waiting", "SIGTERM", (1,), 1),
                ("killed", "SIGKILL", (1,), 5),
                ("gone", "SIGTERM", (0, 1), 5.5),
            ],
        ),
        (
            [{}],
            {"death_sig": KILL},  # there is no soft signal
            [("killed", "SIGKILL", (0,), 0), ("gone", "SIGKILL", (0,), 0)],
        ),
        ([{"dead_at": 0.0}], {}, []),  # they have ended by themselves
    ],
)
def test_each_step_lists_its_workers(world, workers, options, told):
    for worker in workers:
        world.worker(**worker)
    steps = []
    world.climb(world.sequence(on_step=steps.append, **options))
    given = [(step.step, step.signum.name, step.ranks, round(step.seconds, 1)) for step in steps]
    assert given == told
