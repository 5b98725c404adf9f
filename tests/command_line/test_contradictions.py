"""Options that do not go together."""

from __future__ import annotations

import logging

import pytest
from plaunch.cli.parser import parse
from plaunch.plugin import RENDEZVOUS, PluginManager
from plaunch.rendezvous import traits_of
from plaunch_command_line.contradictions import advise_on_options

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
    ],
)
def test_what_torchrun_ignores_is_named(argv, message, caplog):
    check(*argv, "x.py")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert message in record.getMessage()


def test_a_variable_is_as_good_as_an_option(caplog):
    check("x.py", PET_START_METHOD="fork")
    assert "variable PET_START_METHOD has no effect" in caplog.text


@pytest.mark.parametrize(("missing", "named"), [({5}, "local rank 5"), ({5, 7}, "local ranks 5,7")])
def test_ranks_that_a_node_does_not_have_are_named(missing, named, caplog):
    check("--nproc-per-node=2", "x.py", missing_ranks=missing, PET_LOCAL_RANKS_FILTER="0,5,7")
    assert caplog.messages == [
        f"variable PET_LOCAL_RANKS_FILTER names {named}, which this node does not have "
        "(--nproc-per-node=2)"
    ]


def told(caplog, *argv, **environ):
    check(*argv, **environ)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["x.py", "--nproc-per-node=2"], "--nproc-per-node=2 stands behind the script 'x.py' and"),
        (["x.py", "--nproc_per_node", "2"], "--nproc_per_node stands behind the script"),
        (["-m", "x", "a", "--standalone", "--tee", "3"], "--standalone stands behind"),
        (["x.py", "--rdzv-id=a", "--nnodes=2"], "--rdzv-id=a, --nnodes=2 stand behind"),
    ],
)
def test_an_option_behind_the_script_is_named(argv, named, caplog):
    (message,) = told(caplog, *argv)
    assert message.startswith(named)


def test_it_is_named_as_it_was_written_although_a_variable_has_said_the_same(caplog):
    (message,) = told(caplog, "x.py", "--nproc-per-node=2", PET_NPROC_PER_NODE="4")
    assert message.startswith("--nproc-per-node=2 stands behind the script 'x.py'")


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
def test_what_may_be_the_scripts_own_is_not(argv, caplog):
    assert told(caplog, *argv) == []


def test_a_variable_that_is_nearly_ours_is_named(caplog):
    (message,) = told(caplog, "x.py", PET_MAX_RESTART="3")
    assert message == (
        "variable PET_MAX_RESTART is not known and has no effect; did you mean PET_MAX_RESTARTS?"
    )


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


def test_the_variables_of_operators_and_strangers_are_not(caplog):
    assert parse(["x.py"], OF_OPERATORS).unknown_variables == []
    assert told(caplog, "x.py", PET_SHOP="1", PET_IMAGE="1", PETS="1", MY_PET_NNODE="1") == []


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
def test_what_goes_together(argv, caplog):
    assert told(caplog, *argv, "x.py") == []
