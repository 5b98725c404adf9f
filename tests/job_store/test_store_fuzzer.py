"""No frame ends the store's server, takes memory that is not counted, or stops it for long."""

from __future__ import annotations

import pytest

from helpers.store_fuzzer import StoreFuzzer


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_no_frame_is_a_finding(seed):
    """See `helpers.store_fuzzer` for sending a million of them."""
    fuzzer = StoreFuzzer(seed, max_turn=1.0)  # the tool's limit is for a machine that is not busy
    fuzzer.run(5000)
    assert not fuzzer.findings, "\n".join(fuzzer.findings)
    assert fuzzer.outcomes["sessions"] > 50, "nothing is tried if nobody is admitted"
    assert fuzzer.outcomes["right answers"] > 0
