"""Every input that has been found by fuzzing, or shows a format, is checked in every run."""

from __future__ import annotations

import pytest

from helpers import fuzz_targets

MOST_BYTES = 8192  # of an input in the repository
MOST_INPUTS = 150
MAX_SECONDS = 10.0  # of CPU time for one input, also under a tracer on a slow machine


@pytest.mark.parametrize("name", fuzz_targets.NAMES)
def test_every_input_has_a_result_that_it_may_have(name):
    target = fuzz_targets.load(name)
    for path in fuzz_targets.corpus_of(name):
        try:
            with fuzz_targets.interrupted(MAX_SECONDS):
                fuzz_targets.run_input(target, path.read_bytes(), MAX_SECONDS)
        except Exception as error:
            error.args = (f"{path}: {error}",)
            raise


def test_each_target_has_inputs_and_they_are_small():
    folders = {path.name for path in fuzz_targets.CORPUS.iterdir()}
    assert folders == set(fuzz_targets.NAMES)
    for name in folders:
        sizes = [path.stat().st_size for path in fuzz_targets.corpus_of(name)]
        assert 2 <= len(sizes) <= MOST_INPUTS, name
        assert max(sizes) <= MOST_BYTES, name


def test_a_slow_input_is_a_finding():
    def check(data):
        while data:
            pass

    target = fuzz_targets.SimpleNamespace(check=check)
    with (
        pytest.raises(fuzz_targets.Finding, match=r"more than 0\.05 s"),
        fuzz_targets.interrupted(0.05),
    ):
        fuzz_targets.run_input(target, b"x")
