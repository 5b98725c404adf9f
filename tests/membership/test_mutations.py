"""Randomly changed records are rejected and do nothing else, also while a job runs."""

from __future__ import annotations

import json
import random

import pytest

from helpers.mutations import SEEDS, Fuzzer, mutate


@pytest.mark.parametrize("seed", range(4))
def test_no_mutation_is_a_finding(seed):
    """See `helpers.mutations` for running a million of them."""
    fuzzer = Fuzzer(seed)
    for _ in range(800):
        fuzzer.step()
    assert not fuzzer.findings, "\n".join(fuzzer.findings)
    read = {kind for kind, what in fuzzer.outcomes if what == "read"}
    assert read >= {*SEEDS, "counter"}, "nothing is tried if nothing is read"


@pytest.mark.parametrize("seed", range(40))
def test_no_record_in_the_store_is_more_than_an_error(simulate, seed):
    """Any record written while a job runs causes at most a `RendezvousError`."""
    choose = random.Random(seed)
    job = simulate(choose.randrange, min_nodes=2, max_nodes=3, max_restarts=1)
    nodes = job.gather(3)
    for turn in range(6):
        for _ in range(choose.randrange(1, 4)):
            found = choose.choice(job.board.keys())
            key, value = _next(choose, found), _changed(choose, job.board.data[found])
            if not _is_of_another_version(key, value):
                job.board.data[key] = value
        living = choose.choice(nodes)
        if turn == 2:
            living.agent.report([], is_final=False)
        elif turn == 3:
            job.kill(choose.choice(nodes))
        elif turn == 4:
            living.agent.succeed()
        job.run(6.0)  # any other exception fails the test
    for node in nodes:
        text = str(node.error)
        assert text.isprintable()
        assert len(text) < 6000


def _is_of_another_version(key, value):
    """Whether it is a state under another version's key, which has tests of its own."""
    head, _, number = key.rpartition("/")
    try:
        return head.endswith("/state") and json.loads(value)["version"] != int(number)
    except (ValueError, KeyError, TypeError):
        return False


def _next(choose, key):
    """Return the key, or one that will be written next."""
    head, _, number = key.rpartition("/")
    return f"{head}/{int(number) + 1}" if number.isdigit() and choose.random() < 0.5 else key


def _changed(choose, value):
    try:
        record = json.loads(value)
    except ValueError:
        return b"garbage"
    if not isinstance(record, dict):
        return choose.choice((b"garbage", b"-1", b"99999999999999999999", b"70000", b"2"))
    record.pop("v", None)
    return mutate(choose, record) or b"x"
