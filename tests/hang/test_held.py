"""Which workers have just been held for their time-out, from made-up looks."""

from __future__ import annotations

from plaunch.process import Held
from plaunch_hang.held import LateHolds

TIMEOUTS = {0: 10.0, 1: 20.0}
FIRST, SECOND = Held("suspended", 5000.0, 100), Held("suspended", 5000.0, 101)


def test_it_is_late_once_after_the_time_out_of_its_rank():
    late, both = LateHolds(), {0: FIRST, 1: SECOND}
    assert late.take(0.0, both, TIMEOUTS) == {}
    assert late.take(9.0, both, TIMEOUTS) == {}
    assert late.take(10.0, both, TIMEOUTS) == {0: FIRST}
    assert late.take(25.0, both, TIMEOUTS) == {1: SECOND}
    assert late.take(99.0, both, TIMEOUTS) == {}


def test_another_hold_of_the_same_worker_begins_anew():
    late, again = LateHolds(), FIRST._replace(since=5060.0)
    late.take(0.0, {0: FIRST}, TIMEOUTS)
    assert late.take(50.0, {0: FIRST}, TIMEOUTS)
    late.take(55.0, {}, TIMEOUTS)
    assert late.take(60.0, {0: again}, TIMEOUTS) == {}
    assert late.take(70.0, {0: again}, TIMEOUTS) == {0: again}
