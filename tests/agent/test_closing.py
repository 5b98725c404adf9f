"""A rendezvous that takes its time to shut down, and signals that arrive meanwhile."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from plaunch.agent.closing import shut_down
from plaunch.agent.poller import WakeUp
from plaunch.agent.signals import SignalInbox
from plaunch.errors import ThreadStartError
from plaunch.testing.job_rendezvous import FakeJobRendezvous
from plaunch.testing.rendezvous import FakeRendezvous
from plaunch_signals.policies import StopSignalPolicy

from helpers.calls import meanwhile
from helpers.signals import send

POLICY = StopSignalPolicy([signal.SIGTERM])


class Slow(FakeJobRendezvous):
    """Shuts down when it is told to leave."""

    def __init__(self):
        super().__init__()
        self.calls = []
        self.begun = threading.Event()
        self.left = threading.Event()

    def shutdown(self):
        self.calls.append("shutdown")
        self.begun.set()
        assert self.left.wait(30)
        return super().shutdown()

    def leave(self):
        self.calls.append("leave")
        self.left.set()
        return True

    def stop_when_begun(self):
        assert self.begun.wait(30)
        send(signal.SIGTERM)


def test_a_stop_signal_makes_it_leave(caplog):
    with Slow() as handler:
        with meanwhile(handler.stop_when_begun):
            assert shut_down(handler, POLICY)
        assert handler.calls == ["shutdown", "leave"]
    assert "SIGTERM received; this node leaves the job" in caplog.text
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize("has_thread", [True, False])
def test_without_a_signal_it_has_its_time(monkeypatch, has_thread):
    def refuse(*_):
        raise ThreadStartError("no more threads")

    if not has_thread:
        monkeypatch.setattr("plaunch.agent.closing.BackgroundCall", refuse)
    with Slow() as handler:
        handler.left.set()
        assert shut_down(handler, POLICY)
        assert handler.calls == ["shutdown"]


def test_what_it_raises_is_raised():
    class Broken(Slow):
        def shutdown(self):
            if self.left.is_set():
                return True
            raise OSError("the store is gone")

    with Broken() as handler:
        with pytest.raises(OSError, match="the store is gone"):
            shut_down(handler, POLICY)
        handler.left.set()


def test_a_handler_that_waits_for_nobody_is_called_as_it_is():
    handler = FakeRendezvous()
    shut_down(handler, POLICY)
    assert handler.shut_down


def test_a_signal_of_a_second_run_does_not_end_the_process_by_itself(monkeypatch):
    """After a run in plaunch's own process, a handler for the last words stands for the default."""
    monkeypatch.setenv("PLAUNCH_LAUNCHER", str(os.getpid()))
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGUSR1)}
    others = set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}
    before |= {signum: signal.getsignal(signum) for signum in others}
    wake_up = WakeUp()
    try:
        with SignalInbox(POLICY, wake_up):
            pass
        with SignalInbox(POLICY, wake_up) as inbox:
            send(signal.SIGUSR1)
            assert [received.signum for received in inbox.take()] == [signal.SIGUSR1]
    finally:
        wake_up.close()
        for signum, handler in before.items():
            if handler is not None:
                signal.signal(signum, handler)


def test_when_it_has_left_no_thread_of_its_own_is_left():
    class Lingering(Slow):
        def leave(self):
            threading.Timer(0.2, self.left.set).start()
            self.calls.append("leave")
            return True

    with Lingering() as handler:
        with meanwhile(handler.stop_when_begun):
            shut_down(handler, POLICY)
        assert not any(thread.name == "plaunch-shutdown" for thread in threading.enumerate())
