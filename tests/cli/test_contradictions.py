"""Options that do not go together."""

from __future__ import annotations

import logging

import pytest
from plaunch.cli.contradictions import check_options
from plaunch.cli.parser import parse
from plaunch.cli.settings import parse_min_max_nnodes
from plaunch.errors import UsageError


def check(*argv, **environ):
    args = parse([*argv, "x.py"], environ)
    least, most = parse_min_max_nnodes(args.nnodes)
    check_options(args, most, is_range=least != most)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--nnodes=2"], "2 nodes .* give --master-addr with that of node 0"),
        (["--nnodes=1:3", "--node-rank=1"], "3 nodes .* or --rdzv-backend=c10d"),
        (["--nnodes=2", "--master-addr=a", "--master-port=0"], "--master-port=0 leaves 2 nodes"),
    ],
)
def test_refused(argv, message):
    with pytest.raises(UsageError, match=message) as caught:
        check(*argv)
    assert "\n" not in str(caught.value)


STATIC = ("--nnodes=2", "--node-rank=0", "--master-addr=node0")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--rdzv-backend=c10d", "--master-addr=a"], "'c10d' does not use --master-addr;"),
        (["--nnodes=2", "--master-addr=a"], "this node is node 0, as --node-rank was not given"),
        (["--nnodes=1:2", *STATIC[1:]], "it waits for all 2"),
        ([*STATIC, "--rdzv-endpoint=b:1"], "--rdzv-endpoint=b:1 is used, and --master-addr is not"),
        (["--run-path", "--no-python"], "--no-python means nothing with --run-path"),
        (["--start-method=fork"], "--start-method means nothing without --run-path"),
        (["--duplicate-stdout-filters=a"], "--duplicate-stdout-filters means nothing without"),
    ],
)
def test_what_torchrun_ignores_is_named(argv, message, caplog):
    check(*argv)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert message in record.getMessage()


def test_a_variable_is_as_good_as_an_option(caplog):
    check(PET_START_METHOD="fork")
    assert "--start-method means nothing" in caplog.text


@pytest.mark.parametrize(
    "argv",
    [
        [],
        STATIC,
        ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=a"],
        ["--nnodes=2", "--node-rank=1", "--rdzv-endpoint=a:1"],
        ["--start-method=fork", "--run-path"],
        ["--tee=3", "--duplicate-stderr-filters=a"],
    ],
)
def test_what_goes_together(argv, caplog):
    check(*argv)
    assert caplog.text == ""
