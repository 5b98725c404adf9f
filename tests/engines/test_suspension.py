"""`SuspensionMeter` measures how long the command itself did not run."""

import re

from plaunch.errors import ExitCode
from plaunch_engines.suspension import SuspensionMeter

from helpers.clock import Clock


def test_the_longest_time_between_two_turns_is_reported():
    clock = Clock()
    meter = SuspensionMeter(40.0, clock)
    waits = []
    for pause in (0.2, 55.4, 0.2, 3.0):
        clock.advance(pause)
        waits.append(round(meter.measure(), 1))
    assert waits == [0.2, 55.4, 0.2, 3.0]
    error = meter.error()
    assert error.exit_code == ExitCode.COMMAND_SUSPENDED
    assert re.match(r"this command was suspended for 55 s .* after 40 s .*\(--silence-", str(error))
