"""Signals that the agent takes, and those that it passes on to the workers."""

from __future__ import annotations

import faulthandler
import itertools
import logging
import os
import select
import signal
import time
from types import SimpleNamespace

import pytest
from plaunch.agent.poller import WakeUp
from plaunch.agent.signals import ForwardedSignals, SignalInbox
from plaunch.errors import PlaunchError, UsageError
from plaunch.process.signals import SignalAction
from plaunch_signals.policies import StopSignalPolicy

from helpers.calls import meanwhile
from helpers.clock import Clock
from helpers.signals import Policy, send, send_before_handlers_run

SIGSTKFLT = 16  # which Python names from 3.11 on

# SIGALRM is what bounds each test.
MUCH = 20_000  # milliseconds
CAUGHT = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGALRM})


@pytest.fixture
def wake_up():
    wake_up = WakeUp()
    yield wake_up
    wake_up.close()


@pytest.fixture(autouse=True)
def nothing_stays_changed():
    before = {signum: signal.getsignal(signum) for signum in CAUGHT}
    yield
    assert {signum: signal.getsignal(signum) for signum in CAUGHT} == before
    assert signal.set_wakeup_fd(-1) == -1


def taken(policy, wake_up, *signums):
    with SignalInbox(policy, wake_up) as inbox:
        send(*signums)
        return inbox.take()


def test_signals_come_in_order_with_what_they_mean_and_when(wake_up, tmp_path):
    policy = Policy(SIGUSR1=SignalAction.NOTIFY, SIGTERM=SignalAction.STOP)
    began = time.monotonic()
    with SignalInbox(policy, wake_up, proc=str(tmp_path)) as inbox:
        send(signal.SIGUSR1, signal.SIGTERM)
        first, second = inbox.take()
    assert (first.signum, first.action) == (signal.SIGUSR1, SignalAction.NOTIFY)
    assert (second.signum, second.action) == (signal.SIGTERM, SignalAction.STOP)
    assert began <= first.at <= second.at <= time.monotonic()
    assert inbox.is_listed(signal.SIGUSR1)


def test_the_time_for_which_the_launcher_had_no_processor_does_not_count(wake_up, tmp_path):
    """A signal that was forwarded at once, to a launcher that ran seconds later, came at once."""
    (tmp_path / "thread-self").mkdir()
    schedstat = tmp_path / "thread-self" / "schedstat"
    now = 100.0
    times = []
    policy = StopSignalPolicy([signal.SIGINT])
    with SignalInbox(policy, wake_up, proc=str(tmp_path), clock=lambda: now) as inbox:
        for seconds, wait in ((0, "1500000000"), (2.25, "3500000000"), (1, ""), (2, "5000000000")):
            now += seconds
            schedstat.write_text(wait and f"60000000 {wait} 12\n")  # nanoseconds, but for the last
            send(signal.SIGINT)
            times += [each.at for each in inbox.take()]
    assert times == [98.5, 98.75, 99.75, 100.25]


STOPS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


@pytest.mark.parametrize("sequence", [*itertools.permutations(STOPS, 3)])
def test_signals_come_in_the_order_of_arrival_also_if_handlers_run_late(wake_up, sequence):
    """Python calls the handlers of several signals in the order of their numbers."""
    with SignalInbox(StopSignalPolicy(STOPS), wake_up) as inbox:
        for _ in range(2):
            send_before_handlers_run(*sequence)
            received = inbox.take()
            assert [each.signum for each in received] == [*sequence]
            assert len({each.at for each in received}) == 1
            assert inbox.take() == []


def test_a_signal_that_repeats_before_its_handler_runs_is_received_as_often(wake_up):
    sequence = [signal.SIGINT, signal.SIGTERM, signal.SIGINT]
    with SignalInbox(StopSignalPolicy(STOPS), wake_up) as inbox:
        send_before_handlers_run(*sequence)
        assert [each.signum for each in inbox.take()] == sequence


def test_signals_are_received_if_other_code_replaces_the_wake_up_descriptor(wake_up):
    with SignalInbox(StopSignalPolicy(STOPS), wake_up) as inbox:
        signal.set_wakeup_fd(-1)
        send_before_handlers_run(signal.SIGTERM, signal.SIGHUP)
        assert {each.signum for each in inbox.take()} == {signal.SIGTERM, signal.SIGHUP}
        send(signal.SIGTERM)
        assert [each.signum for each in inbox.take()] == [signal.SIGTERM]


def send_soon(signum):
    time.sleep(0.05)  # most likely, the wait has begun
    send(signum)


def test_a_signal_that_interrupts_a_wait_ends_it(wake_up):
    """Its handler reads the descriptor, and then Python continues the wait that it interrupted."""
    poller = select.poll()
    poller.register(wake_up.fileno(), select.POLLIN)
    with SignalInbox(StopSignalPolicy(STOPS), wake_up) as inbox:
        with meanwhile(send_soon, signal.SIGTERM):
            assert poller.poll(MUCH)
        wake_up.clear()
        assert poller.poll(0) == []
        assert [each.signum for each in inbox.take()] == [signal.SIGTERM]


@pytest.mark.parametrize("bad", [signal.SIGKILL, signal.SIGSTOP, 0, 4711, "SIGTERM"])
def test_a_policy_that_lists_what_cannot_be_handled_changes_nothing(wake_up, bad):
    class Bad:
        def signals(self):
            return (signal.SIGTERM, signal.SIGINT, bad)

    with pytest.raises(UsageError, match=r"signal policy Bad wants to handle .*which the system"):
        SignalInbox(Bad(), wake_up).__enter__()


def test_a_policy_that_cannot_say_its_signals_changes_nothing(wake_up):
    class Bad:
        def signals(self):
            raise OSError("no list")

    with pytest.raises(OSError, match="no list"):
        SignalInbox(Bad(), wake_up).__enter__()


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (KeyError("x"), "KeyError('x')"),
        (PlaunchError("plugin 'p' 1.0 is at fault"), "plugin 'p' 1.0 is at fault"),
        ("stop", "it answers 'stop', which is not a SignalAction"),
        (None, "it answers None"),
    ],
)
def test_a_policy_that_does_not_know_is_named_and_the_default_applies(
    wake_up, caplog, answer, problem
):
    policy = Policy(SIGTERM=answer, SIGUSR1=answer)
    stop, notice = taken(policy, wake_up, signal.SIGTERM, signal.SIGUSR1)
    assert (stop.action, notice.action) == (SignalAction.STOP, SignalAction.IGNORE)
    assert f"signal policy Policy does not say what SIGTERM means: {problem}" in caplog.messages[0]
    assert caplog.messages[0].endswith("The default applies: stop")
    assert caplog.messages[1].endswith("The default applies: ignore")


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGXCPU"])
def test_a_signal_that_would_end_the_launcher_is_a_wish_to_stop(wake_up, name):
    with SignalInbox(StopSignalPolicy([signal.SIGTERM]), wake_up) as inbox:
        send(signal.Signals[name])
        assert [received.action for received in inbox.take()] == [SignalAction.STOP]
        assert not inbox.is_listed(signal.Signals[name])


def test_a_stop_signal_that_a_policy_does_not_list_is_not_handled(wake_up):
    with SignalInbox(StopSignalPolicy([signal.SIGINT]), wake_up):
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_signals_with_another_handler_are_not_taken(wake_up, capfd):
    """Also a handler that Python does not know of."""
    heard = []
    previous = signal.signal(signal.SIGUSR2, lambda *_: heard.append("USR2"))
    with open(os.devnull, "w") as nowhere:
        faulthandler.register(signal.SIGUSR1, file=nowhere)
        try:
            taken_ = taken(
                StopSignalPolicy([signal.SIGTERM]), wake_up, signal.SIGUSR1, signal.SIGUSR2
            )
            assert taken_ == []
            assert heard == ["USR2"]
        finally:
            faulthandler.unregister(signal.SIGUSR1)
            signal.signal(signal.SIGUSR2, previous)


def test_without_proc_the_handlers_of_python_are_read(wake_up, tmp_path):
    with SignalInbox(StopSignalPolicy([signal.SIGTERM]), wake_up, proc=str(tmp_path)) as inbox:
        send(signal.SIGUSR1)
        assert [received.action for received in inbox.take()] == [SignalAction.STOP]
        assert not inbox.is_listed(signal.SIGUSR1)


def test_after_the_run_of_a_launcher_signals_wait_for_the_report(wake_up, monkeypatch):
    """Whoever has asked three times has it; the third one must not cut the report off."""
    monkeypatch.setenv("PLAUNCH_LAUNCHER", str(os.getpid()))
    monkeypatch.setattr("plaunch.agent.signals.raise_priority", lambda: False)
    now = 100.0
    heard = []
    previous = signal.signal(signal.SIGTERM, lambda *_: heard.append("before"))
    try:
        for _ in range(2):  # shutting the rendezvous down is another one
            with SignalInbox(StopSignalPolicy([signal.SIGTERM]), wake_up, clock=lambda: now):
                pass
        send(signal.SIGTERM)
        assert heard == []
        now += 2.0
        send(signal.SIGTERM)
        send(signal.SIGTERM)
        assert heard == ["before", "before"]
    finally:
        signal.signal(signal.SIGTERM, previous)
        for name in ("SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGPROF", "SIGXCPU", "SIGIO", "SIGPWR"):
            signal.signal(signal.Signals[name], signal.SIG_DFL)
        signal.signal(SIGSTKFLT, signal.SIG_DFL)


# --- signals that are passed on, each once a second -----------------------------------------------


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def passed_on():
    return []


@pytest.fixture
def notices(passed_on, clock):
    return ForwardedSignals(SimpleNamespace(signal=passed_on.append), clock=clock)


def test_a_signal_is_passed_on_once_a_second(notices, passed_on, clock):
    assert notices.pass_on(signal.SIGUSR1)
    for _ in range(3):
        clock.now += 0.25
        assert not notices.pass_on(signal.SIGUSR1)
        assert not notices.pass_on(signal.SIGUSR1, node="b")
    assert passed_on == [signal.SIGUSR1]
    clock.now += 0.25  # a second after the one that was passed on, not after the last
    assert notices.pass_on(signal.SIGUSR1, node="b")
    assert passed_on == [signal.SIGUSR1] * 2


def test_each_signal_counts_for_itself(notices, passed_on):
    assert notices.pass_on(signal.SIGUSR1)
    assert notices.pass_on(signal.SIGUSR2)
    assert passed_on == [signal.SIGUSR1, signal.SIGUSR2]


def test_new_workers_have_got_nothing_yet(notices, passed_on):
    notices.pass_on(signal.SIGUSR1)
    notices.forget()
    assert notices.pass_on(signal.SIGUSR1)
    assert passed_on == [signal.SIGUSR1] * 2


def test_a_forwarded_signal_is_logged(notices, caplog):
    caplog.set_level(logging.DEBUG, "plaunch")
    notices.pass_on(signal.SIGUSR1, node="b")
    notices.pass_on(signal.SIGUSR1)
    notices.pass_on(signal.SIGUSR1, node="c")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "SIGUSR1 received on node b; it is passed on and the job goes on"),
        ("INFO", "SIGUSR1 received within a second of the last; the workers have it already"),
        (
            "DEBUG",
            "SIGUSR1 received on node c within a second of the last; the workers have it already",
        ),
    ]
