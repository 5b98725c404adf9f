"""Which name somebody probably meant."""

from __future__ import annotations

import pytest
from plaunch._names import closest, did_you_mean, suggest
from plaunch.cli.options import OPTIONS

OPTION_NAMES = [name for option in OPTIONS for name in option.names]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("--nodes", "--nnodes"),
        ("--nproc", "--nproc-per-node"),
        ("--NPROC_PER_NODE", "--nproc-per-node"),
        ("--max-restart", "--max-restarts"),
        ("--logdir", "--log-dir"),
        ("--rdzv-backnd", "--rdzv-backend"),
    ],
)
def test_a_slip_is_answered_with_what_was_meant(name, meant):
    assert closest(name, OPTION_NAMES) == meant


@pytest.mark.parametrize(
    "name",
    ["--lr", "-x", "--model", "--seed", "--epochs", "--batch-size", "--gpus", "--log"],
)
def test_a_word_that_is_only_a_little_alike_is_not(name):
    assert closest(name, OPTION_NAMES) is None


def test_the_ends_of_messages():
    assert did_you_mean("--nnode", ["--nnodes"]) == "; did you mean --nnodes?"
    assert did_you_mean("frok", ["fork", "spawn"]) == "; did you mean 'fork'?"
    assert did_you_mean("x", ["fork", "spawn"]) == ""
    assert suggest("frok", ["spawn", "fork"]) == "; did you mean 'fork'? Choices: fork, spawn"
    assert suggest("x", ["spawn", "fork"]) == ". Choices: fork, spawn"
    assert suggest("x", []) == "; no choices are available"
