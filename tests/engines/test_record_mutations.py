"""No output of an agent or a worker is more than text, a record, or a failure of its node."""

from __future__ import annotations

import pytest

from helpers.record_mutations import RecordFuzzer


@pytest.mark.parametrize("seed", range(4))
def test_no_output_is_a_finding(seed):
    """See `helpers.record_mutations` for running a million of them."""
    fuzzer = RecordFuzzer(seed)
    for _ in range(5000):
        fuzzer.step()
    assert not fuzzer.findings, "\n".join(fuzzer.findings)
    assert fuzzer.outcomes["read"] > 1000, "nothing is tried if nothing is read"
    assert fuzzer.outcomes["refused"] > 1000
