"""Workers that have been held for their timeout."""

from __future__ import annotations

from plaunch.process import Held
from plaunch_hang.watch import OverdueHolds

TIMEOUTS = {0: 10.0, 1: 20.0}
FIRST, SECOND = Held("suspended", 5000.0, 100), Held("suspended", 5000.0, 101)


def test_a_hold_is_returned_once_after_the_timeout_of_its_rank():
    late, both = OverdueHolds(), {0: FIRST, 1: SECOND}
    assert late.take(0.0, both, TIMEOUTS) == {}
    assert late.take(9.0, both, TIMEOUTS) == {}
    assert late.take(10.0, both, TIMEOUTS) == {0: FIRST}
    assert late.take(25.0, both, TIMEOUTS) == {1: SECOND}
    assert late.take(99.0, both, TIMEOUTS) == {}


def test_another_hold_of_the_same_worker_starts_over():
    late, again = OverdueHolds(), FIRST._replace(since=5060.0)
    late.take(0.0, {0: FIRST}, TIMEOUTS)
    assert late.take(50.0, {0: FIRST}, TIMEOUTS)
    late.take(55.0, {}, TIMEOUTS)
    assert late.take(60.0, {0: again}, TIMEOUTS) == {}
    assert late.take(70.0, {0: again}, TIMEOUTS) == {0: again}
