"""The signal handlers of a context that is used without an agent."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time

import pytest
from plaunch.errors import SignalException
from plaunch_torchrun.stop_signals import StopSignals

from helpers.clock import Clock

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


@pytest.fixture(autouse=True)
def _restore_all(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_SIGNALS_TO_HANDLE", raising=False)
    before = {signum: signal.getsignal(signum) for signum in (*HANDLED, signal.SIGUSR1)}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


class Escalated:
    def __init__(self):
        self.times = 0

    def __call__(self):
        self.times += 1


def receive(signum):
    os.kill(os.getpid(), signum)


def installed(escalated=None, clock=time.monotonic):
    signals = StopSignals(escalated or Escalated(), clock)
    signals.install()
    return signals


def restore_on_a_thread(signals):
    """As when the context is closed on a thread, which cannot put handlers back."""
    closer = threading.Thread(target=signals.restore)
    closer.start()
    closer.join()


@pytest.mark.parametrize("signum", HANDLED)
def test_torchruns_signals_raise(signum):
    installed()
    with pytest.raises(SignalException) as caught:
        receive(signum)
    assert caught.value.sigval is signum
    assert signum.name in str(caught.value)


def test_the_environment_lists_the_signals(monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGUSR1")
    installed()
    assert signal.getsignal(signal.SIGTERM) is before
    with pytest.raises(SignalException):
        receive(signal.SIGUSR1)


def test_an_invalid_name_is_logged_and_skipped(monkeypatch, caplog):
    monkeypatch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGNONE, SIGUSR1,SIGKILL")
    with caplog.at_level(logging.WARNING, "plaunch"):
        installed()
    assert len(caplog.messages) == 2
    assert "'SIGNONE' is not a signal" in caplog.messages[0]
    assert "'SIGKILL' cannot be handled" in caplog.messages[1]
    with pytest.raises(SignalException):
        receive(signal.SIGUSR1)


def test_restore_puts_the_previous_handlers_back():
    def mine(signum, frame):
        raise AssertionError("not called here")

    signal.signal(signal.SIGTERM, mine)
    signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    before = {signum: signal.getsignal(signum) for signum in HANDLED}
    signals = installed()
    assert signal.getsignal(signal.SIGTERM) is not mine
    signals.restore()
    assert {signum: signal.getsignal(signum) for signum in HANDLED} == before
    signals.restore()
    assert {signum: signal.getsignal(signum) for signum in HANDLED} == before


def test_an_ignored_sighup_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signals = installed()
    receive(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    signals.restore()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_handler_installed_on_top_is_left_there():
    def on_top(signum, frame):
        pass

    signals = installed()
    signal.signal(signal.SIGTERM, on_top)
    signals.restore()
    assert signal.getsignal(signal.SIGTERM) is on_top


def test_two_contexts_that_end_in_the_order_of_their_start_leave_nothing():
    before = signal.getsignal(signal.SIGTERM)
    first, second = installed(), installed()
    first.restore()
    with pytest.raises(SignalException):
        receive(signal.SIGTERM)
    second.restore()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_retired_handler_passes_the_signal_on():
    received = []
    signal.signal(signal.SIGTERM, lambda signum, frame: received.append(signum))
    restore_on_a_thread(installed())
    receive(signal.SIGTERM)
    receive(signal.SIGTERM)
    assert received == [signal.SIGTERM, signal.SIGTERM]


def test_a_retired_handler_over_the_default_lets_the_process_die():
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            restore_on_a_thread(installed())
            receive(signal.SIGTERM)
        finally:
            os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM


def test_on_another_thread_nothing_is_installed_and_that_is_logged(caplog):
    before = signal.getsignal(signal.SIGTERM)
    with caplog.at_level(logging.WARNING, "plaunch"):
        starter = threading.Thread(target=installed, name="starter")
        starter.start()
        starter.join()
    assert signal.getsignal(signal.SIGTERM) is before
    assert "on thread 'starter'" in caplog.text


# Two stop signals, the seconds between them, and whether the second is another request.
SIGNALS = [
    (signal.SIGTERM, signal.SIGINT, 0.3, True),
    (signal.SIGINT, signal.SIGINT, 0.3, True),
    (signal.SIGINT, signal.SIGINT, 0.1, False),  # another process has forwarded it
    (signal.SIGQUIT, signal.SIGQUIT, 0.1, False),
    (signal.SIGTERM, signal.SIGTERM, 1.9, False),  # Slurm
    (signal.SIGTERM, signal.SIGHUP, 1.9, False),  # systemd
    (signal.SIGTERM, signal.SIGTERM, 2.1, True),
]


@pytest.mark.parametrize(("first", "second", "seconds", "is_new"), SIGNALS)
def test_signals_in_a_held_block_are_raised_at_its_end_and_another_request_escalates(
    first, second, seconds, is_new
):
    escalated, clock = Escalated(), Clock()
    signals = installed(escalated, clock)
    steps = []

    def work():
        with signals.held():
            with signals.held():
                receive(first)
                steps.append(escalated.times)
            clock.advance(seconds)
            receive(second)
            steps.append(escalated.times)

    with pytest.raises(SignalException) as caught:
        work()
    assert steps == [0, is_new]
    assert caught.value.sigval is first


@pytest.mark.parametrize(("first", "second", "seconds", "is_new"), SIGNALS)
def test_after_a_signal_was_raised_another_request_escalates_the_close(
    first, second, seconds, is_new
):
    escalated, clock = Escalated(), Clock()
    signals = installed(escalated, clock)
    with pytest.raises(SignalException):
        receive(first)
    clock.advance(seconds)
    with signals.held():
        receive(second)
    assert escalated.times == is_new


def test_a_signal_of_the_same_request_is_not_raised_again():
    clock = Clock()
    signals = installed(clock=clock)
    with pytest.raises(SignalException):
        receive(signal.SIGINT)
    clock.advance(0.1)
    receive(signal.SIGINT)
    clock.advance(0.2)
    with pytest.raises(SignalException):
        receive(signal.SIGINT)
    signals.restore()
