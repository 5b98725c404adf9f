"""The values that a scheduler fills in: field by field, never those that the user has given."""

from __future__ import annotations

import logging

import pytest
from plaunch import hookimpl
from plaunch.cli.parser import parse
from plaunch.errors import PluginError, UnknownNameError, UsageError
from plaunch.plugin import PluginManager
from plaunch.scheduling import Allocation
from plaunch.testing import plugin_manager
from plaunch_schedulers.filling import apply_allocation, fill_in

from helpers.hooks import NO_OTHERS

FOUR = Allocation(
    nnodes=4,
    node_rank=3,
    endpoint="head:20001",
    run_id="job-7",
    sources={"nnodes": "N", "node_rank": "I", "endpoint": "HOSTS", "run_id": "JOB"},
)
FILLED = {
    "nnodes": "4",
    "node_rank": 3,
    "rdzv_backend": "c10d",
    "rdzv_endpoint": "head:20001",
    "rdzv_id": "job-7",
    "master_addr": None,
    "master_port": None,
}

MANAGER = PluginManager.create(environ={}, first_party_only=True)


def options(*argv, **environ):
    return parse([*argv, "train.py"], environ)


def filled(args, **expected):
    """Check the options of the rendezvous; by default those of `FOUR`."""
    wanted = FILLED | expected
    assert {dest: getattr(args, dest) for dest in wanted} == wanted
    return True


def test_missing_options_are_filled_in_with_their_source():
    args = options()
    line = apply_allocation(args, FOUR, "acme", MANAGER)
    assert filled(args)
    assert {dest: args.sources[dest] for dest in FILLED} == {
        "nnodes": "N (acme)",
        "node_rank": "I (acme)",
        "rdzv_backend": "several nodes (acme)",
        "rdzv_endpoint": "HOSTS (acme)",
        "rdzv_id": "JOB (acme)",
        "master_addr": "default",
        "master_port": "default",
    }
    assert line == (
        "from acme: nnodes=4 (N), rdzv_id=job-7 (JOB), rdzv_backend=c10d (several nodes), "
        "node_rank=3 (I), rdzv_endpoint=head:20001 (HOSTS)"
    )


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--nnodes=2:4", {"nnodes": "2:4"}),
        ("--nnodes=4:8", {"nnodes": "4:8"}),
        ("--node-rank=0", {"node_rank": 0}),
        ("--rdzv-backend=c10d", {}),
        ("--rdzv-endpoint=other:1", {"rdzv_endpoint": "other:1"}),
        ("--rdzv-id=mine", {"rdzv_id": "mine"}),
        # Nodes beyond the given number are spares, without an index.
        ("--nnodes=2:3", {"nnodes": "2:3", "node_rank": None}),
        # The static backend has other options for its address.
        (
            "--rdzv-backend=static",
            {
                "rdzv_backend": "static",
                "rdzv_endpoint": "",
                "master_addr": "head",
                "master_port": 20001,
            },
        ),
        (
            "--master-addr=other",
            {
                "rdzv_backend": "static",
                "rdzv_endpoint": "",
                "master_addr": "other",
                "master_port": 20001,
            },
        ),
        (
            "--master-port=1234",
            {
                "rdzv_backend": "static",
                "rdzv_endpoint": "",
                "master_addr": "head",
                "master_port": 1234,
            },
        ),
        # The other backends are not hosted by a node.
        ("--rdzv-backend=etcd", {"rdzv_backend": "etcd", "rdzv_endpoint": ""}),
    ],
)
@pytest.mark.parametrize("as_variable", [False, True])
def test_given_options_are_kept(option, expected, as_variable):
    name, _, value = option.lstrip("-").partition("=")
    variable = "PET_" + name.replace("-", "_").upper()
    args = options(**{variable: value}) if as_variable else options(option)
    line = apply_allocation(args, FOUR, "acme", MANAGER)
    assert filled(args, **expected)
    dest = name.replace("-", "_")
    assert args.sources[dest] == (variable if as_variable else "command line")
    assert f"{dest}=" not in line


def test_with_all_options_given_nothing_is_filled_in():
    args = options(
        "--nnodes=2", "--node-rank=1", "--rdzv-backend=c10d", "--rdzv-endpoint=a", "--rdzv-id=b"
    )
    before = vars(args) | {"sources": dict(args.sources)}
    assert apply_allocation(args, FOUR, "acme", MANAGER) == ""
    assert vars(args) == before


@pytest.mark.parametrize(
    ("argv", "allocation"),
    [
        (["--nnodes=1"], FOUR),
        ([], Allocation(nnodes=1, node_rank=0, endpoint="me:1", run_id="job-7")),
    ],
)
def test_one_node_needs_no_rendezvous(argv, allocation):
    args = options(*argv)
    apply_allocation(args, allocation, "acme", MANAGER)
    assert args.nnodes == "1"
    assert (args.rdzv_backend, args.rdzv_endpoint, args.node_rank) == ("static", "", None)
    assert args.rdzv_id == "job-7"


def test_an_empty_allocation_changes_nothing():
    args = options()
    before = vars(args) | {"sources": dict(args.sources)}
    assert apply_allocation(args, Allocation(), "none", MANAGER) == ""
    assert vars(args) == before


@pytest.mark.parametrize(
    ("argv", "nproc"),
    [([], "8"), (["--nproc-per-node=2"], "2"), (["--devices=0,1"], "1")],
)
def test_the_number_of_workers_is_filled_in_unless_given(argv, nproc):
    args = options(*argv)
    apply_allocation(args, Allocation(nproc_per_node=8), "acme", MANAGER)
    assert args.nproc_per_node == nproc


AGAIN = Allocation(run_id="job-7-again", job_id="job-7", sources={"job_id": "JOB"})


@pytest.mark.parametrize(
    ("argv", "job_id"),
    [
        ([], "job-7"),
        (["--job-id=mine"], "mine"),
        # A script with several launches gives each a run id; they are separate jobs to their
        # workers.
        (["--rdzv-id=mine"], None),
        (["--rdzv-id=mine", "--job-id=both"], "both"),
    ],
)
def test_the_job_id_is_filled_in_with_the_run_id(argv, job_id):
    args = options(*argv)
    line = apply_allocation(args, AGAIN, "acme", MANAGER)
    assert args.job_id == job_id
    assert ("job_id=job-7 (JOB)" in line) is (argv == [])


# --- what is missing ------------------------------------------------------------------------------

PARTLY = Allocation(
    node_rank=1,
    missing={
        "nnodes": "give nnodes",
        "endpoint": "give endpoint",
        "run_id": "give run_id",
        "node_rank": "give node_rank",
    },
)


@pytest.mark.parametrize(
    ("argv", "missing"),
    [
        ([], "give nnodes"),
        (["--nnodes=1"], None),
        (["--nnodes=2"], "give endpoint"),
        (["--nnodes=2", "--rdzv-endpoint=a"], "give run_id"),
        (["--nnodes=2", "--rdzv-endpoint=a", "--rdzv-id=b"], None),
        (["--nnodes=2", "--master-addr=a", "--rdzv-id=b"], None),
        (["--nnodes=2", "--rdzv-backend=etcd", "--rdzv-id=b"], None),
        (["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=b"], "give endpoint"),
    ],
)
def test_a_missing_necessary_value_is_an_error(argv, missing):
    args = options(*argv)
    if missing is None:
        apply_allocation(args, PARTLY, "acme", MANAGER)
        assert args.rdzv_backend == ("c10d" if args.rdzv_endpoint else args.rdzv_backend)
        return
    with pytest.raises(UsageError, match=f"^--scheduler=acme: {missing}$"):
        apply_allocation(args, PARTLY, "acme", MANAGER)


@pytest.mark.parametrize(("backend", "is_refused"), [("static", True), ("c10d", False)])
def test_an_index_is_needed_by_the_static_backend_only(backend, is_refused):
    allocation = Allocation(nnodes=2, endpoint="a:1", missing={"node_rank": "give node_rank"})
    args = options(f"--rdzv-backend={backend}")
    if is_refused:
        with pytest.raises(UsageError, match="give node_rank"):
            apply_allocation(args, allocation, "acme", MANAGER)
    else:
        apply_allocation(args, allocation, "acme", MANAGER)
        assert args.node_rank is None


@pytest.mark.parametrize(
    "fields",
    [
        {"nnodes": 0},
        {"nproc_per_node": 0},
        {"node_rank": -1},
        {"nnodes": 2, "node_rank": 2},
    ],
)
def test_invalid_allocations(fields):
    with pytest.raises(ValueError, match=r"is (-1|0|2)"):
        Allocation(**fields)


# --- the option ----------------------------------------------------------------------------------


class Acme:
    """A plugin with a scheduler `acme`."""

    def __init__(self, find):
        self._find = find

    @hookimpl
    def plaunch_schedulers(self):
        return {"acme": self._find}


STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_STEP_NODELIST": "node[1-2]",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
}


@pytest.mark.parametrize("as_variable", [False, True])
def test_slurm_is_used_if_selected(as_variable):
    args = options(PET_SCHEDULER="slurm") if as_variable else options("--scheduler=slurm")
    line = fill_in(args, plugin_manager(), STEP)
    assert line.startswith("from slurm: nnodes=2 (SLURM_STEP_NUM_NODES), rdzv_id=slurm-7.0 ")
    assert filled(args, nnodes="2", node_rank=1, rdzv_endpoint="node1:20007", rdzv_id="slurm-7.0")


def test_slurm_is_otherwise_only_offered():
    """Each launcher of a sweep started by srun is a separate job, as with torchrun."""
    args = options("--nproc-per-node=2")
    before = vars(args) | {"sources": dict(args.sources)}
    assert fill_in(args, plugin_manager(), STEP).startswith("srun has started 2 launchers")
    assert vars(args) == before


def test_without_a_scheduler_no_plugin_is_loaded():
    manager = plugin_manager(words=NO_OTHERS)
    assert fill_in(options(), manager, {}) == ""
    assert manager.selected() == []


def test_a_plugins_scheduler_gets_the_environment():
    seen = []

    def find(environ):
        seen.append(environ)
        return FOUR

    args = options("--scheduler=acme")
    assert fill_in(args, plugin_manager(Acme(find)), {"A": "b"}).startswith("from acme: ")
    assert seen == [{"A": "b"}]
    assert filled(args)


def test_a_failing_scheduler_is_named():
    def find(environ):
        return Allocation(nnodes=int(environ["NODES"]))

    manager = plugin_manager(Acme(find))
    for environ, message in [({}, "KeyError: 'NODES'"), ({"NODES": "0"}, "nnodes is 0")]:
        with pytest.raises(PluginError, match=message) as caught:
            fill_in(options("--scheduler=acme"), manager, environ)
        assert "scheduler 'acme' (--scheduler) of module tests.schedulers.test_filling" in str(
            caught.value
        )


def test_an_unknown_scheduler():
    with pytest.raises(UnknownNameError, match=r"'slrum' is unknown .* did you mean 'slurm'\?"):
        fill_in(options("--scheduler=slrum"), plugin_manager(), {})


def test_standalone_overrides_the_scheduler(caplog):
    caplog.set_level(logging.WARNING, "plaunch")
    args = options("--scheduler=slurm", "--standalone")
    assert fill_in(args, plugin_manager(), STEP) == ""
    assert args.nnodes == "1:1"
    assert "--standalone overrides --scheduler=slurm" in caplog.text
