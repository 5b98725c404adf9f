from __future__ import annotations

import signal

import pytest
from plaunch.errors import UsageError
from plaunch.plugin import PluginContext
from plaunch.process import SignalAction, SignalPolicy
from plaunch_signals.torchrun import TorchrunSignalPolicy

STANDARD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def policy(**settings):
    return TorchrunSignalPolicy(
        PluginContext(run_id="exp7", role="default", host="gpu-07", settings=settings)
    )


def test_it_is_a_signal_policy():
    assert isinstance(policy(), SignalPolicy)


@pytest.mark.parametrize("settings", [{}, {"signals_to_handle": None}])
def test_torchruns_four_signals_are_the_default(settings):
    assert policy(**settings).signals() == STANDARD


@pytest.mark.parametrize(
    ("names", "signals"),
    [
        ("SIGTERM,SIGINT,SIGHUP,SIGQUIT", STANDARD),
        ("SIGUSR1", (signal.SIGUSR1,)),
        (" sigterm , SIGUSR2,SIGTERM", (signal.SIGTERM, signal.SIGUSR2)),
        ("", ()),
    ],
)
def test_the_list_says_what_is_handled(names, signals):
    assert policy(signals_to_handle=names).signals() == signals


def test_every_listed_signal_stops_the_job():
    chosen = policy(signals_to_handle="SIGTERM,SIGUSR1")
    assert {chosen.action(signum) for signum in chosen.signals()} == {SignalAction.STOP}


def test_a_signal_that_is_not_listed_is_left_alone():
    assert policy(signals_to_handle="SIGTERM").action(signal.SIGUSR1) is SignalAction.IGNORE
    assert policy(signals_to_handle="").action(signal.SIGTERM) is SignalAction.IGNORE


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("SIGNOPE", "'SIGNOPE' is not a signal"),
        ("SIGTERM,SIGKILL", "'SIGKILL' cannot be handled"),
        (15, "signals_to_handle is 15; write names in one string"),
        (["SIGTERM"], "signals_to_handle is \\['SIGTERM'\\]"),
    ],
)
def test_a_bad_list_is_a_usage_error(names, message):
    with pytest.raises(UsageError, match=message):
        policy(signals_to_handle=names)
