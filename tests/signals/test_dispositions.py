"""What plugins change about signals is put back."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import threading

import pytest
from plaunch_signals import dispositions
from plaunch_signals.dispositions import KEPT, Dispositions, kept_dispositions

LIBC = ctypes.CDLL(None)
IGNORE = ctypes.c_void_p(1)


@pytest.fixture(autouse=True)
def _everything_is_put_back(caplog):
    caplog.set_level(logging.WARNING, "plaunch")
    before = {signum: signal.getsignal(signum) for signum in KEPT}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def said(caplog):
    return [record.getMessage() for record in caplog.records]


def handle(signum, frame):
    """A handler."""


CHANGES = {
    "ignored": lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
    "handled": lambda: signal.signal(signal.SIGCHLD, handle),
    "blocked": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD]),
    "ignored behind Python's back": lambda: LIBC.signal(signal.SIGCHLD, IGNORE),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_put_back_and_said(caplog, change) -> None:
    before = Dispositions.look()
    with kept_dispositions("plugin 'x'", "while it was loaded"):
        change()
        assert Dispositions.look() != before
    assert Dispositions.look() == before
    (message,) = said(caplog)
    assert message.startswith(
        "plugin 'x' has changed what SIGCHLD does (while it was loaded); plaunch has undone this."
    )


def test_a_handler_of_ours_comes_back(caplog) -> None:
    signal.signal(signal.SIGUSR1, handle)
    with kept_dispositions("plugin 'x'", "hook"):
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGUSR1) is handle
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    (message,) = said(caplog)
    assert "what SIGTERM, SIGUSR1 do (hook)" in message


def test_nothing_is_said_where_nothing_changes(caplog) -> None:
    with kept_dispositions("plugin 'x'", "hook"):
        pass
    assert said(caplog) == []


@pytest.mark.parametrize("signum", [signal.SIGALRM, signal.SIGWINCH, signal.SIGPROF])
def test_others_are_left_alone(caplog, signum) -> None:
    previous = signal.getsignal(signum)
    with kept_dispositions("plugin 'x'", "hook"):
        signal.signal(signum, handle)
    assert signal.getsignal(signum) is handle
    signal.signal(signum, previous)
    assert said(caplog) == []


def test_a_change_is_put_back_although_the_plugin_fails(caplog) -> None:
    def fail():
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), kept_dispositions("plugin 'x'", "hook"):
        fail()
    assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL


def test_on_another_thread_nobody_is_blamed_for_what_the_main_one_does(caplog) -> None:
    begun, ended = threading.Event(), threading.Event()

    def call():
        with kept_dispositions("plugin 'innocent'", "hook"):
            begun.set()
            ended.wait(60)

    thread = threading.Thread(target=call)
    thread.start()
    begun.wait(60)
    signal.signal(signal.SIGUSR1, handle)
    ended.set()
    thread.join()
    assert signal.getsignal(signal.SIGUSR1) is handle
    assert said(caplog) == []


@pytest.mark.parametrize("is_first", [True, False])
def test_a_look_that_fails_is_no_change(caplog, monkeypatch, tmp_path, is_first) -> None:
    """For want of descriptors, say."""
    good, bad = dispositions._STATUS, os.fspath(tmp_path / "nothing")
    signal.signal(signal.SIGUSR1, handle)
    monkeypatch.setattr(dispositions, "_STATUS", bad if is_first else good)
    with kept_dispositions("plugin 'x'", "hook"):
        monkeypatch.setattr(dispositions, "_STATUS", good if is_first else bad)
    assert said(caplog) == []


def test_without_proc_what_python_knows_counts(caplog, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(dispositions, "_STATUS", os.fspath(tmp_path / "nothing"))
    with kept_dispositions("plugin 'x'", "hook"):
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
    assert len(said(caplog)) == 1
