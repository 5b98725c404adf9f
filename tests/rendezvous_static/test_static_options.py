"""The endpoint of nodes with given ranks, from the options."""

from __future__ import annotations

import logging

import pytest
from plaunch.cli import parse
from plaunch.errors import UsageError
from plaunch_rendezvous_static.options import fill_in

STATIC = ("--nnodes=2", "--node-rank=0", "--master-addr=node0")
AT_NODE_0 = ("--rdzv-endpoint=node0:7",)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--nnodes=1:3", "--master-addr=a", "--master-port=0"], "or --rdzv-backend=c10d"),
        (["--nnodes=2", "--master-addr=a", "--master-port=0"], "--master-port=0 leaves 2 nodes"),
    ],
)
def test_rejected_options(argv, message):
    with pytest.raises(UsageError, match=message) as caught:
        fill_in(parse([*argv, "x.py"], {}))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--nnodes=2", "--master-addr=a"], "this node is node 0, as --node-rank was not given"),
        (["--nnodes=1:2", *STATIC[1:]], "it waits for all 2"),
        ([*STATIC, "--rdzv-endpoint=b:1"], "--rdzv-endpoint=b:1 is used, and --master-addr is not"),
        ([*STATIC, *AT_NODE_0, "--master-port=8"], "--master-addr, --master-port is not"),
    ],
)
def test_options_that_torchrun_ignores_are_warned_about(argv, message, caplog):
    fill_in(parse([*argv, "x.py"], {}))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert message in record.getMessage()


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["--nnodes=2"],  # rejected by the launcher
        STATIC,
        # The same address, given twice.
        [*STATIC, *AT_NODE_0],
        [*STATIC, *AT_NODE_0, "--master-port=7"],
        ["--nnodes=2", "--node-rank=1", "--rdzv-endpoint=a:1"],
    ],
)
def test_compatible_options(argv, caplog):
    fill_in(parse([*argv, "x.py"], {}))
    assert caplog.text == ""
