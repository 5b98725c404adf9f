"""The stop sequence's decisions, against a clock and processes that are made up."""

from __future__ import annotations

import logging
import signal

import pytest
from plaunch.process.stopping.stop_sequence import StopSequence

TERM, KILL = signal.SIGTERM, signal.SIGKILL


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
        refuses=(),
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
        self.asked_rest = is_wrapper
        self.refuses = set(refuses)  # the processes of another user's

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


def test_a_cooperative_worker_gets_the_soft_signal_only_and_only_itself(world):
    world.worker()
    sequence = world.climb(world.sequence())
    assert world.signals() == [("SIGTERM", "leader")]
    assert world.now < 0.001
    assert sequence.stuck == {}


def test_the_soft_signal_is_the_one_asked_for(world):
    world.worker(dies_of=[signal.SIGINT])
    world.climb(world.sequence(death_sig=signal.SIGINT))
    assert world.signals() == [("SIGINT", "leader")]


def test_it_ends_as_soon_as_the_last_worker_has_ended(world):
    world.worker(delay=3)
    world.worker(delay=7)
    world.climb(world.sequence(grace=600))
    assert world.now == pytest.approx(7, abs=0.01)
    assert KILL.name not in [name for name, _ in world.signals()]


def test_who_ignores_the_soft_signal_is_killed_with_its_group_after_the_grace(world):
    world.worker(dies_of=[KILL])
    world.worker()
    world.climb(world.sequence(grace=5))
    assert world.signals(rank=0) == [("SIGTERM", "leader"), ("SIGKILL", "all")]
    assert world.signals(rank=1) == [("SIGTERM", "leader")]
    assert world.now == pytest.approx(5, abs=0.01)


def test_no_grace_means_sigkill_at_once(world):
    world.worker(dies_of=[KILL])
    world.climb(world.sequence(grace=0))
    assert world.signals() == [("SIGTERM", "leader"), ("SIGKILL", "all")]
    assert world.now < 0.001


def test_sigkill_as_the_soft_signal_goes_to_the_group_at_once(world):
    world.worker()
    world.climb(world.sequence(death_sig=KILL))
    assert world.signals() == [("SIGKILL", "all")]


def test_escalating_skips_the_rest_of_the_grace(world):
    world.worker(dies_of=[KILL])
    sequence = world.sequence(grace=30)
    sequence.step(world.live())
    world.now = 2.0
    sequence.escalate()
    world.climb(sequence)
    assert world.signals() == [("SIGTERM", "leader"), ("SIGKILL", "all")]
    assert world.now < 2.001


def test_escalating_before_the_first_step_skips_the_soft_signal(world):
    world.worker()
    sequence = world.sequence()
    sequence.escalate()
    world.climb(sequence)
    assert world.signals() == [("SIGKILL", "all")]


def test_sigkill_is_sent_once_however_often_it_is_stepped(world):
    world.worker(dies_of=[KILL], delay=2)
    sequence = world.sequence(grace=1)
    for second in range(40):
        world.now = second / 10
        sequence.step(world.live())
    assert world.signals().count(("SIGKILL", "all")) == 1


def test_what_outlives_sigkill_is_named_after_a_bound(world):
    world.worker(dies_of=[])
    world.worker()
    sequence = world.climb(world.sequence(grace=5, kill_wait=4))
    assert world.now == pytest.approx(9, abs=0.01)
    assert sequence.stuck == {0: [1000]}


def test_who_was_given_up_is_no_reason_to_look_all_the_time(world):
    """Another worker has left something behind by then, which is still waited for."""
    world.worker(dies_of=[])
    world.worker(dies_of=[KILL], delay=3, leaves=[77], orphans_die_of=[])
    sequence = world.climb(world.sequence(grace=5, kill_wait=4))
    assert sequence.stuck == {0: [1000], 1: [77]}
    assert world.now == pytest.approx(12, abs=0.1)


def test_a_worker_that_may_not_be_signalled_is_not_waited_for_after_its_grace(world):
    world.worker(dies_of=[], refuses=[1000])
    world.worker(dies_of=[KILL], delay=1)
    sequence = world.climb(world.sequence(grace=5, kill_wait=4))
    assert sequence.stuck == {0: [1000]}
    assert world.now == pytest.approx(6, abs=0.1)


def test_what_was_orphaned_and_may_not_be_signalled_is_not_waited_for(world):
    world.worker(leaves=[77, 78], orphans_die_of=[KILL], refuses={77}, dead_at=0.0)
    sequence = world.climb(world.sequence(kill_wait=4))
    assert sequence.stuck == {0: [77]}
    assert world.now == pytest.approx(0.5, abs=0.1)


def test_what_a_worker_orphaned_gets_the_soft_signal_too(world):
    world.worker(leaves=[77], dead_at=0.0)
    sequence = world.climb(world.sequence())
    assert world.signals() == [("SIGTERM", "rest")]
    assert world.now < 0.1
    assert sequence.stuck == {}


def test_what_was_orphaned_and_ignores_it_is_killed_in_under_a_second(world):
    world.worker(leaves=[77, 78], orphans_die_of=[KILL], dead_at=0.0)
    world.climb(world.sequence(grace=600))
    assert world.signals() == [("SIGTERM", "rest"), ("SIGKILL", "all")]
    assert world.now < 1.0


def test_children_are_left_alone_as_long_as_their_worker_lives(world):
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


def test_what_was_orphaned_and_outlives_sigkill_is_named(world):
    world.worker(leaves=[77], orphans_die_of=[], dead_at=0.0)
    sequence = world.climb(world.sequence(kill_wait=4))
    assert sequence.stuck == {0: [77]}
    assert world.now == pytest.approx(4.5, abs=0.05)


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


def test_what_evades_sigkill_for_ever_is_given_up(world):
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


def test_the_log_says_once_whom_it_waits_for_and_how_long(world, caplog):
    for dies_of in ([KILL], [TERM], [KILL], [KILL]):
        world.worker(dies_of=dies_of)
    with caplog.at_level(logging.WARNING, "plaunch"):
        world.climb(world.sequence(grace=30))
    assert caplog.messages == [
        "trainer: waiting for local ranks 0,2-3 to end after SIGTERM; SIGKILL in 29 s",
        "trainer: local ranks 0,2-3 did not end within 30 s of SIGTERM; they get SIGKILL",
    ]


def test_the_log_says_nothing_of_a_signal_that_was_not_sent(world, caplog):
    world.worker()
    sequence = world.sequence()
    sequence.escalate()
    with caplog.at_level(logging.WARNING, "plaunch"):
        world.climb(sequence)
    assert caplog.messages == ["trainer: local ranks 0 get SIGKILL at once"]


def test_the_log_is_silent_when_everybody_ends_quickly(world, caplog):
    world.worker(delay=0.2)
    with caplog.at_level(logging.INFO, "plaunch"):
        world.climb(world.sequence())
    assert caplog.messages == []


def test_a_short_grace_still_has_its_notice(world, caplog):
    world.worker(dies_of=[KILL])
    with caplog.at_level(logging.WARNING, "plaunch"):
        world.climb(world.sequence(grace=0.5))
    assert len(caplog.messages) == 2


def test_the_delay_is_that_of_the_next_thing_to_do(world):
    world.worker(dies_of=[KILL])
    sequence = world.sequence(grace=30, kill_wait=4)
    assert sequence.step([0]) == pytest.approx(1)  # the notice
    world.now = 1.0
    assert sequence.step([0]) == pytest.approx(29)  # SIGKILL
    world.now = 30.0
    assert sequence.step([0]) == pytest.approx(4)  # giving up


def test_who_is_abandoned_gets_sigkill_at_once_and_is_not_waited_for(world):
    world.worker(dies_of=[])
    world.worker(delay=3)
    sequence = world.climb(world.sequence(grace=30, abandoned=[0]))
    assert world.signals(rank=0) == [("SIGKILL", "all")]
    assert world.signals(rank=1) == [("SIGTERM", "leader")]
    assert world.now == pytest.approx(3, abs=0.01)
    assert sequence.stuck == {0: [1000]}


def test_who_is_abandoned_alone_is_given_up_at_once(world):
    world.worker(dies_of=[])
    sequence = world.sequence(grace=30, abandoned=[0])
    assert sequence.step([0]) is None
    assert sequence.stuck == {0: [1000]}


def test_who_is_abandoned_and_ends_after_all_is_not_stuck(world):
    world.worker(delay=1)
    world.worker(delay=3)
    sequence = world.climb(world.sequence(abandoned=[0]))
    assert sequence.stuck == {}


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
    with caplog.at_level(logging.WARNING, "plaunch"):
        world.climb(world.sequence(grace=30))
    assert world.signals() == [("SIGTERM", "session"), ("SIGKILL", "all")]
    assert world.now == pytest.approx(30, abs=0.2)
    assert caplog.messages == [
        "trainer: waiting for what local ranks 0 have started to end after SIGTERM; SIGKILL in 29 s"
    ]


# --- what is told of it ---------------------------------------------------------------------------


def told_of(world, **options):
    steps = []
    world.climb(world.sequence(on_step=steps.append, **options))
    return [(step.step, step.signum.name, step.ranks, round(step.seconds, 1)) for step in steps]


def test_a_stop_that_goes_well_is_told_in_two_steps(world):
    world.worker(delay=0.2)
    world.worker(delay=0.3)
    assert told_of(world) == [("signalled", "SIGTERM", (0, 1), 0), ("gone", "SIGTERM", (0, 1), 0.3)]


def test_each_step_names_those_whom_it_is_about(world):
    world.worker(delay=0.2)
    world.worker(dies_of=[KILL], delay=0.5)
    assert told_of(world, grace=5) == [
        ("signalled", "SIGTERM", (0, 1), 0),
        ("waiting", "SIGTERM", (1,), 1),
        ("killed", "SIGKILL", (1,), 5),
        ("gone", "SIGTERM", (0, 1), 5.5),
    ]


def test_a_stop_by_sigkill_has_no_soft_signal(world):
    world.worker()
    assert [step for step, *_ in told_of(world, death_sig=KILL)] == ["killed", "gone"]


def test_nothing_is_told_of_workers_that_have_ended_by_themselves(world):
    world.worker(dead_at=0.0)
    assert told_of(world) == []
