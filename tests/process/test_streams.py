"""Counting the output of workers over all their starts."""

from __future__ import annotations

import math

from plaunch.process import OutputCounts
from plaunch.process.streams import LastOutput, OutputStats


class Counted:
    """Streams that have counted."""

    def __init__(self, *counts, shown=0.0):
        self.counts = lambda: OutputCounts(*counts)
        self.last_shown = lambda: shown


def test_before_any_start():
    stats = OutputStats()
    assert stats.counts() == OutputCounts()
    assert stats.last_shown() == -math.inf


def test_what_was_read_and_dropped_stays_counted_over_starts():
    stats = OutputStats()
    stats.follow(Counted(10, 5, 2, shown=7.0))
    assert (stats.counts(), stats.last_shown()) == (OutputCounts(10, 5, 2), 7.0)
    stats.follow(Counted(1, 0, 1, shown=8.0))
    assert (stats.counts(), stats.last_shown()) == (OutputCounts(11, 0, 3), 8.0)
    stats.follow(Counted(1, 4))
    assert (stats.counts(), stats.last_shown()) == (OutputCounts(12, 4, 3), 0.0)


def test_what_each_worker_wrote_counts_from_its_start():
    stats = OutputStats()
    stats.follow(Counted(10, 0, 0, {0: 4, 1: 6}))
    stats.follow(Counted(1, 0, 0, {0: 1, 1: 0}))
    assert stats.counts() == OutputCounts(11, 0, 0, {0: 1, 1: 0})


def test_a_hurried_stop_hurries_the_streams():
    class Slow:
        hurried = 0

        def escalate(self):
            self.hurried += 1

    streams = Slow()
    LastOutput(streams, lambda: None, shows_rest=True).escalate()
    assert streams.hurried == 1
