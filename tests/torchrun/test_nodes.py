"""`PET_ON`: programs for torchrun launch on the nodes of an engine."""

from __future__ import annotations

import argparse
import json
import os
import sys

import pytest
from plaunch import LaunchConfig
from plaunch.errors import UsageError
from plaunch_torchrun import run as torchrun
from plaunch_torchrun.launcher import elastic_launch
from plaunch_torchrun.nodes import changed_variables
from plaunch_torchrun.parser import own_arguments

from helpers.programs import run_python

# Its jobs end at once, after it has shown what agents would get.
SHOWING = """\
import json
import plaunch
class ShowingEngine:
    has_own_files = True
    def __init__(self, request):
        self.code = int(request.where or 0)
    def launch(self, arguments, show):
        show(json.dumps(arguments))
        return self.code
    def close(self):
        pass
@plaunch.hookimpl
def plaunch_engines():
    return {"showing": ShowingEngine}
"""
# Real agents, which inherit no variables.
CLEAN = """\
import plaunch
from plaunch_engines import AgentProcess, parse_count
class CleanEngine:
    can_replace = False
    def __init__(self, request):
        self.nodes = parse_count("clean", request.where)
        self.handles = []
    def start(self, command, indices):
        env = {"PATH": "/nodes/bin"}
        self.handles += [
            AgentProcess(f"node{index}", command, address="127.0.0.1", env=env)
            for index in indices
        ]
        return self.handles
    def close(self):
        for handle in self.handles:
            handle.stop()
@plaunch.hookimpl
def plaunch_engines():
    return {"clean": CleanEngine}
"""
# It is torchrun's caller: it sets a variable for its workers, and does not know the option --on.
CALLER = """\
import os, sys
from plaunch_torchrun.run import get_args_parser, run
os.environ["CALLER_SETTING"] = "x y"
os.environ["PATH"] = "/caller/bin"
args = get_args_parser().parse_args(["train.py"])
args.nproc_per_node, args.node_rank, args.master_port = 2, 0, 29500
run(args)
print("the program continues")
"""
TRAIN = """\
import json, os, sys
sys.stdout.write(json.dumps(dict(os.environ)) + "\\n")
sys.exit(int(os.environ.get("OF_SHELL_CODE", "0")))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the engines, the program and the script; it is on PYTHONPATH."""
    texts = {"showing": SHOWING, "clean": CLEAN, "caller": CALLER, "train": TRAIN}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PLAUNCH_PLUGINS", "showing,clean")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def on(folder, monkeypatch):
    """Let the user request an engine."""
    monkeypatch.syspath_prepend(str(folder))

    def on(text="showing"):
        monkeypatch.setenv("PET_ON", text)

    on()
    return on


def parse(*words, **given):
    """Return the namespace of torchrun's parser, changed as callers do."""
    return argparse.Namespace(**{**vars(torchrun.parse_args(list(words))), **given})


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        (["train.py", "-x"], ["--", "train.py", "-x"]),
        (["--nproc-per-node=2", "train.py"], ["--nproc-per-node=2", "--", "train.py"]),
        (["-m", "--event-conf=jsonl.path=a", "x"], ["--module", "--event-conf=jsonl.path=a"]),
    ],
)
def test_agents_get_the_options_and_the_script(on, capsys, args, shown):
    torchrun.run(parse(*args))
    arguments = json.loads(capsys.readouterr().out)
    assert [word for word in shown if word in arguments] == shown


@pytest.mark.parametrize(
    "given",
    [
        # accelerate, on one node and on two; its port may be in use
        {"master_port": "29500", "standalone": True},
        {"node_rank": 0, "rdzv_endpoint": "None:29500"},
        {"master_addr": "None", "master_port": "29500"},
    ],
)
def test_addresses_of_this_node_are_left_out(on, capsys, given):
    torchrun.run(parse("train.py", **given))
    assert json.loads(capsys.readouterr().out) == ["--", "train.py"]


def test_the_endpoint_of_a_chosen_backend_stays(on, capsys):
    torchrun.run(parse("train.py", rdzv_backend="etcd-v2", rdzv_endpoint="server:2379"))
    options = {"--rdzv-backend=etcd-v2", "--rdzv-endpoint=server:2379"}
    assert options < set(json.loads(capsys.readouterr().out))


def test_options_of_engines_have_variables(on, monkeypatch, capsys):
    monkeypatch.setenv("PET_NNODES", "2")
    monkeypatch.setenv("PET_SPARES", "1")
    monkeypatch.setenv("PET_SLURM_OPTIONS", "--partition=a --exclusive")
    args = own_arguments(parse("train.py"))
    assert (args.spares, args.slurm_options) == (1, ["--partition=a --exclusive"])
    torchrun.main(["train.py"])
    assert json.loads(capsys.readouterr().out) == ["--nnodes=2", "--", "train.py"]


def test_the_exit_code_is_that_of_the_job(on):
    on("showing:7")
    with pytest.raises(SystemExit) as caught:
        torchrun.main(["train.py"])
    assert caught.value.code == 7


def test_one_command_for_each_node_is_refused(on):
    with pytest.raises(UsageError, match=r"^PET_ON=showing starts .* node 1 .* as for node 0$"):
        torchrun.run(parse("train.py", node_rank=1))


def test_objects_are_refused_that_agents_cannot_get(on, monkeypatch, capsys):
    with pytest.raises(UsageError, match=r"--port-range is \(1, 2\).* variable PET_PORT_RANGE"):
        torchrun.run(parse("train.py", port_range=(1, 2)))
    monkeypatch.setenv("PET_PORT_RANGE", "1-2")  # which agents get
    torchrun.run(parse("train.py"))
    assert json.loads(capsys.readouterr().out) == ["--", "train.py"]


def test_what_runs_on_this_node_only_is_refused(on):
    with pytest.raises(UsageError, match="PET_ON=showing would have no effect"):
        torchrun.config_from_args(parse("train.py"))
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=1)
    with pytest.raises(UsageError, match="PET_ON=showing requests other nodes"):
        elastic_launch(config, print)()


def test_variables_that_a_program_has_changed(monkeypatch):
    monkeypatch.setenv("HOME", "/changed")
    monkeypatch.setenv("NEW", "")
    monkeypatch.setenv("PATH", "/changed")
    monkeypatch.delenv("USER", raising=False)
    changed = changed_variables()
    assert {"HOME", "NEW"} <= set(changed)
    assert not {"PATH", "USER"} & set(changed)


def run(folder, *words, **environ):
    return run_python(*words, cwd=folder, env={**os.environ, **environ})


def test_workers_get_the_variables_that_the_program_has_set(folder):
    shell = {"PET_PASS_ENV": "OF_SHELL_*", "OF_SHELL_ONE": "1", "HIDDEN": "1"}
    done = run(folder, "caller.py", PET_ON="clean:2", **shell)
    assert done.returncode == 0, done.stderr
    workers = [
        json.loads(line.split(" ", 1)[1])
        for line in done.stdout.splitlines()
        if line.startswith("[node")
    ]
    assert sorted(worker["RANK"] for worker in workers) == ["0", "1", "2", "3"], done.stdout
    assert {worker["WORLD_SIZE"] for worker in workers} == {"4"}
    for worker in workers:
        assert worker["CALLER_SETTING"] == "x y"
        assert worker["OF_SHELL_ONE"] == "1"
        assert worker["PATH"] == f"{os.path.dirname(sys.executable)}:/nodes/bin"
        assert "HIDDEN" not in worker
        assert "PET_ON" not in worker
    assert done.stdout.endswith("the program continues\n")
    assert "PET_ON" not in done.stderr


def test_a_failed_job_ends_the_program_with_its_code(folder):
    shell = {"PET_PASS_ENV": "OF_SHELL_*", "OF_SHELL_CODE": "7"}
    done = run(folder, "caller.py", PET_ON="clean:2", **shell)
    assert done.returncode == 7
    assert done.stderr.count("plaunch: rank ") == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "continues" not in done.stdout


def test_a_program_that_does_not_call_torchrun_is_reported(folder):
    (folder / "other.py").write_text("print('on this node')")
    words = ["-m", "plaunch_torchrun", "other.py"]
    done = run(folder, *words, PET_ON="clean:2")
    assert done.stdout == "on this node\n"
    assert "PET_ON=clean:2 had no effect: other.py has not called torchrun" in done.stderr
    assert run(folder, *words).stderr == ""


def test_an_option_before_the_program_is_refused(folder):
    done = run(folder, "-m", "plaunch_torchrun", "--on=clean:2", "caller.py")
    assert done.returncode == 2
    assert "'--on=clean:2' is not an option here" in done.stderr
    assert "set options of plaunch with variables" in done.stderr
