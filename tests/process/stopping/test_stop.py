"""The order of what a stop does first."""

import contextlib

import pytest
from plaunch.process.stopping.stop import Stop


@pytest.mark.parametrize("inherits", [True, False])
def test_workers_are_signalled_before_all_processes_are_looked_at(inherits):
    done = []

    class Sequence:
        def step(self, live):
            done.append("signal")
            return 1.0

    class Job:
        def inherits_orphans(self):
            return inherits

        def look_at_all(self):
            done.append("look")

        def finish_kill(self):
            pass

        def refresh(self):
            pass

    class Watch:
        def fileno(self):
            return 0

    stop = Stop(
        sequence=Sequence(),
        job=Job(),
        watch=Watch(),
        streams=None,
        shows_rest=False,
        look=lambda: [0],
        release=lambda stuck, orphans: None,
        lock=contextlib.nullcontext(),
    )
    assert stop.step() == 1.0
    assert stop.step() == 1.0
    # Who does not inherit orphans has looked before the stop began, while parents live.
    assert done == (["signal", "look", "signal"] if inherits else ["signal", "signal"])
