"""The built-in signal policies."""

from __future__ import annotations

import re
import signal

import pytest
from plaunch.cli import main
from plaunch.errors import UsageError
from plaunch.plugin import PluginContext
from plaunch.process import SignalAction, SignalPolicy
from plaunch_signals.policies import NotifySignalPolicy, TorchrunSignalPolicy

STANDARD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
TERM, USER_1, USER_2 = signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2
BOTH = (NotifySignalPolicy, TorchrunSignalPolicy)


def policy(kind, **settings):
    return kind(PluginContext(run_id="exp7", role="default", host="gpu-07", settings=settings))


@pytest.mark.parametrize(
    ("settings", "signals"),
    [
        ({}, STANDARD),
        ({"signals_to_handle": None}, STANDARD),
        ({"signals_to_handle": "SIGTERM,SIGINT,SIGHUP,SIGQUIT"}, STANDARD),
        ({"signals_to_handle": "SIGUSR1"}, (USER_1,)),
        ({"signals_to_handle": " sigterm , SIGUSR2,SIGTERM"}, (TERM, USER_2)),
        ({"signals_to_handle": ""}, ()),
    ],
)
def test_torchruns_policy_stops_on_the_listed_signals(settings, signals):
    found = policy(TorchrunSignalPolicy, **settings)
    assert found.signals() == signals
    assert {signum: found.action(signum) for signum in (*signals, signal.SIGCONT)} == {
        **dict.fromkeys(signals, SignalAction.STOP),
        signal.SIGCONT: SignalAction.IGNORE,
    }


@pytest.mark.parametrize(
    ("settings", "stops", "notifies"),
    [
        ({}, STANDARD, (USER_1, USER_2)),
        (
            {"signals_to_handle": "SIGTERM", "options": {"notify_signals": "SIGUSR2,SIGCONT"}},
            (TERM,),
            (USER_2, signal.SIGCONT),
        ),
        # A signal that is listed to stop is not passed on by default.
        ({"signals_to_handle": "SIGTERM,SIGUSR1"}, (TERM, USER_1), (USER_2,)),
    ],
)
def test_the_policy_notify_passes_user_signals_on(settings, stops, notifies):
    found = policy(NotifySignalPolicy, **settings)
    assert {signum: found.action(signum) for signum in found.signals()} == {
        **dict.fromkeys(stops, SignalAction.STOP),
        **dict.fromkeys(notifies, SignalAction.NOTIFY),
    }


@pytest.mark.parametrize("kind", BOTH)
def test_other_signals_are_ignored(kind):
    assert isinstance(policy(kind), SignalPolicy)
    assert policy(kind).action(signal.SIGALRM) is SignalAction.IGNORE
    assert policy(kind, signals_to_handle="").action(TERM) is SignalAction.IGNORE


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("SIGNOPE", "'SIGNOPE' is not a signal"),
        ("SIGTERM,SIGKILL", "'SIGKILL' cannot be handled"),
        (15, "signals_to_handle is 15; write names in one string"),
        (["SIGTERM"], "signals_to_handle is \\['SIGTERM'\\]"),
    ],
)
def test_a_bad_list_is_a_usage_error(kind, names, message):
    with pytest.raises(UsageError, match=message):
        policy(kind, signals_to_handle=names)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"signals_to_handle": "SIGUSR1", "options": {"notify_signals": "SIGUSR1"}},
            r"SIGUSR1 is listed to stop the job .* keep one",
        ),
        ({"options": {"notify_signals": "SIGNOPE"}}, "'SIGNOPE' is not a signal"),
    ],
)
def test_a_bad_list_of_notify_signals_is_a_usage_error(settings, message):
    with pytest.raises(UsageError, match=message):
        policy(NotifySignalPolicy, **settings)


REFUSED = (
    r"notify_signals is 'SIGUSR1' \(--notify-signals\), which the signal policy 'torchrun' does "
    "not have; add --signal-policy=notify"
)


def test_torchruns_policy_rejects_notify_signals():
    with pytest.raises(UsageError, match=REFUSED):
        policy(TorchrunSignalPolicy, options={"notify_signals": "SIGUSR1"})


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_the_command_line_rejects_notify_signals_with_torchruns_policy(more, capfd):
    assert main(["--notify-signals=SIGUSR1", *more, "--no-python", "true"]) == 2
    assert re.search(REFUSED, capfd.readouterr().err)


def test_a_command_line_with_the_policy_notify(capfd):
    words = ["--signal-policy=notify", "--notify-signals=SIGUSR2", "--no-python", "true"]
    assert main(words) == 0
    words[1] = "--notify-signals=SIGNOPE"
    assert main(words) == 2
    assert "'SIGNOPE' is not a signal" in capfd.readouterr().err
