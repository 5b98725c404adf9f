"""Signals as users write them."""

from __future__ import annotations

import signal

import pytest
from plaunch.errors import UsageError
from plaunch.process.signals import parse_signals


@pytest.mark.parametrize(
    ("names", "parsed"),
    [
        ("", ()),
        ("SIGTERM", (signal.SIGTERM,)),
        (" sigusr1 ,, SIGTERM,SIGUSR1", (signal.SIGUSR1, signal.SIGTERM)),
    ],
)
def test_names_of_signals(names, parsed):
    assert parse_signals(names) == parsed


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("SIGTERM,TERM", "'TERM' is not a signal of this system; write names such as SIGTERM"),
        ("SIGTERM,SIGKILL", "'SIGKILL' cannot be handled by any process; leave it out"),
        ("sigstop", "'sigstop' cannot be handled by any process; leave it out"),
    ],
)
def test_what_no_handler_can_catch_is_refused(names, message):
    with pytest.raises(UsageError, match=message):
        parse_signals(names)
