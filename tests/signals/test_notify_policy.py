from __future__ import annotations

import signal

import pytest
from plaunch.errors import UsageError
from plaunch.plugin import PluginContext
from plaunch.process import SignalAction, SignalPolicy
from plaunch_signals.notify import NotifySignalPolicy

STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
USER = (signal.SIGUSR1, signal.SIGUSR2)


def policy(**settings):
    return NotifySignalPolicy(
        PluginContext(run_id="exp7", role="default", host="gpu-07", settings=settings)
    )


def actions(found):
    return {signum: found.action(signum) for signum in found.signals()}


def test_it_is_a_signal_policy():
    assert isinstance(policy(), SignalPolicy)


def test_by_default_user_signals_are_told_and_torchruns_four_stop():
    assert actions(policy()) == {
        **dict.fromkeys(STOP, SignalAction.STOP),
        **dict.fromkeys(USER, SignalAction.NOTIFY),
    }


def test_both_lists_can_be_given():
    found = policy(signals_to_handle="SIGTERM", notify_signals="SIGUSR2,SIGCONT")
    assert actions(found) == {
        signal.SIGTERM: SignalAction.STOP,
        signal.SIGUSR2: SignalAction.NOTIFY,
        signal.SIGCONT: SignalAction.NOTIFY,
    }


def test_a_listed_stop_signal_wins_over_a_default_notify_signal():
    assert actions(policy(signals_to_handle="SIGTERM,SIGUSR1")) == {
        signal.SIGTERM: SignalAction.STOP,
        signal.SIGUSR1: SignalAction.STOP,
        signal.SIGUSR2: SignalAction.NOTIFY,
    }


def test_a_signal_on_both_lists_is_refused():
    with pytest.raises(UsageError, match=r"SIGUSR1 is listed to stop the job .* keep one"):
        policy(signals_to_handle="SIGUSR1", notify_signals="SIGUSR1")


def test_a_word_that_is_no_signal_is_refused():
    with pytest.raises(UsageError, match="'SIGNOPE' is not a signal"):
        policy(notify_signals="SIGNOPE")


def test_a_signal_that_was_never_asked_for_means_nothing():
    assert policy().action(signal.SIGALRM) is SignalAction.IGNORE
