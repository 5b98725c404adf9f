"""Warnings of options that are probably a mistake."""

from __future__ import annotations

import logging

import pytest
from plaunch.cli import worker_command
from plaunch.cli.parser import parse
from plaunch.errors import UsageError
from plaunch.plugin import RENDEZVOUS, PluginManager
from plaunch.rendezvous import traits_of
from plaunch_command_line.advice import advise_on_options

MANAGER = PluginManager.create(environ={}, first_party_only=True)


def check(*argv, missing_ranks=(), **environ):
    """Check a whole command line."""
    args = parse(argv, environ)
    traits = traits_of(MANAGER.get(RENDEZVOUS, args.rdzv_backend))
    advise_on_options(args, traits, missing_ranks)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--rdzv-backend=c10d", "--master-addr=a"], "'c10d' does not use --master-addr;"),
        (["--run-path", "--no-python"], "--no-python has no effect with --run-path"),
        (["--start-method=fork"], "--start-method has no effect without --run-path"),
        (["--duplicate-stdout-filters=a"], "--duplicate-stdout-filters has no effect without"),
        (["--no-python", "/bin/accelerate"], "each worker runs '/bin/accelerate', which starts a"),
    ],
)
def test_options_without_effect_are_reported(argv, message, caplog):
    check(*argv, "x.py")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert message in record.getMessage()


def test_variables_count_like_options(caplog):
    check("x.py", PET_START_METHOD="fork")
    assert "variable PET_START_METHOD has no effect" in caplog.text


@pytest.mark.parametrize(("missing", "named"), [({5}, "local rank 5"), ({5, 7}, "local ranks 5,7")])
def test_missing_local_ranks_are_reported(missing, named, caplog):
    check("--nproc-per-node=2", "x.py", missing_ranks=missing, PET_LOCAL_RANKS_FILTER="0,5,7")
    assert caplog.messages == [
        f"variable PET_LOCAL_RANKS_FILTER names {named}, which this node does not have "
        "(--nproc-per-node=2)"
    ]


def warnings_of(caplog, *argv, **environ):
    check(*argv, **environ)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["x.py", "--nproc-per-node=2"], "--nproc-per-node=2 is after the script 'x.py' and"),
        (["x.py", "--nproc_per_node", "2"], "--nproc_per_node is after the script"),
        (["-m", "x", "a", "--standalone", "--tee", "3"], "--standalone is after"),
        (["x.py", "--rdzv-id=a", "--nnodes=2"], "--rdzv-id=a, --nnodes=2 are after"),
    ],
)
def test_an_option_after_the_script_is_reported(argv, named, caplog):
    (message,) = warnings_of(caplog, *argv)
    assert message.startswith(named)


def test_an_option_after_the_script_is_reported_despite_a_variable(caplog):
    (message,) = warnings_of(caplog, "x.py", "--nproc-per-node=2", PET_NPROC_PER_NODE="4")
    assert message.startswith("--nproc-per-node=2 is after the script 'x.py'")


@pytest.mark.parametrize(
    "argv",
    [
        ["--", "x.py", "--nproc-per-node=2"],  # divided off by who wrote it
        ["x.py", "--", "--nproc-per-node=2"],  # no option to the script either
        ["--nproc-per-node=1", "x.py", "--nproc-per-node=2"],  # both are meant
        ["x.py", "--devices=2", "--log-dir", "a", "--scheduler=cosine", "--role", "b", "-m"],
        ["x.py", "nnodes", "-nnodes", "--nnodesx=2"],
    ],
)
def test_options_of_the_script_are_not_reported(argv, caplog):
    assert warnings_of(caplog, *argv) == []


def test_a_misspelled_variable_is_reported(caplog):
    (message,) = warnings_of(caplog, "x.py", PET_MAX_RESTART="3")
    assert message == (
        "variable PET_MAX_RESTART is not known and has no effect; did you mean PET_MAX_RESTARTS?"
    )


def test_the_variable_of_programs_for_torchrun_is_reported(caplog):
    (message,) = warnings_of(caplog, "x.py", PET_ON="local:2")
    assert message == (
        "variable PET_ON has an effect only under python -m plaunch_torchrun; write the option --on"
    )


def test_a_program_that_calls_torchrun_instead_of_a_script():
    with pytest.raises(UsageError, match=r"write python -m plaunch_torchrun accelerate$"):
        worker_command(parse(["accelerate", "launch", "train.py"], {}))


OF_OPERATORS = {
    "PET_NNODES": "1:4",
    "PET_NPROC_PER_NODE": "auto",
    "PET_NODE_RANK": "0",
    "PET_MASTER_ADDR": "job-master-0",
    "PET_MASTER_PORT": "23456",
    "PET_RDZV_BACKEND": "c10d",
    "PET_RDZV_ENDPOINT": "job-worker-0:29400",
    "PET_RDZV_ID": "job",
    "PET_RDZV_CONF": "join_timeout=600",
    "PET_STANDALONE": "0",
    "PET_MAX_RESTARTS": "3",
}


def test_other_variables_are_not_reported(caplog):
    assert parse(["x.py"], OF_OPERATORS).unknown_variables == []
    assert (
        warnings_of(caplog, "x.py", PET_SHOP="1", PET_IMAGE="1", PETS="1", MY_PET_NNODE="1") == []
    )


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=a"],
        # As with Kubeflow's variables.
        ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=a:1", "--master-addr=a"],
        ["--start-method=fork", "--run-path"],
        ["--tee=3", "--duplicate-stderr-filters=a"],
    ],
)
def test_valid_combinations(argv, caplog):
    assert warnings_of(caplog, *argv, "x.py") == []
