"""plaunch's own options through torchrun's functions."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import pytest
from plaunch.cli import config_from_args, fill_in, parse
from plaunch.errors import UnknownNameError, UsageError
from plaunch.plugin import PluginManager
from plaunch_torchrun import run as torchrun

ENVIRONMENTS = Path(__file__).parents[1] / "schedulers/environments"
KUBERNETES = {
    "JOB_NAME": "train",
    "JOB_COMPLETION_INDEX": "1",
    "PET_NNODES": "2",
    "PET_MASTER_ADDR": "train-0.svc",
    "PET_MASTER_PORT": "29500",
}


def slurm(name):
    lines = (ENVIRONMENTS / f"{name}.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (slurm("slurm-step-3x1-task2"), ["--scheduler=slurm"]),
        (slurm("slurm-step-2x1-task1"), ["--scheduler=slurm", "--nproc-per-node=2"]),
        (slurm("slurm-step-2x1-task1"), ["--scheduler=slurm", "--node-rank=0"]),
        (slurm("slurm-step-2x1-task1"), ["--scheduler=slurm", "--rdzv-backend=c10d"]),
        (slurm("slurm-step-2x1-task1"), ["--scheduler=slurm", "--master-addr=node09"]),
        (slurm("slurm-step-2x1-task0"), ["--scheduler=none"]),
        (slurm("slurm-requeued-task1"), ["--scheduler=slurm", "--rdzv-id=mine"]),
        (slurm("openmpi-1x2-rank1"), ["--scheduler=none", "--nnodes=2", "--master-addr=h"]),
        ({"PET_SCHEDULER": "slurm", **slurm("slurm-step-3x1-task2")}, []),
        (KUBERNETES, ["--scheduler=kubernetes"]),
    ],
)
def test_a_scheduler_is_used(environ, words, script, monkeypatch):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    given = parse([*words, script])
    manager = PluginManager.create()
    fill_in(given, manager)
    wanted = config_from_args(given, manager)
    had, _, _ = torchrun.config_from_args(torchrun.parse_args([*words, script]))
    unlike = {"logs_specs"}
    if wanted.max_nodes == 1:
        unlike.add("run_id")  # is made up
    if "--node-rank=0" in words:
        unlike.add("node_rank")  # torchrun's default, which a namespace does not tell from it
        assert had.node_rank == 1
    if wanted.rdzv_backend == "static":
        unlike.add("node_rank")  # where none is 0
        assert (had.node_rank or 0) == (wanted.node_rank or 0)
    for field in dataclasses.fields(wanted):
        if field.name not in unlike:
            assert getattr(had, field.name) == getattr(wanted, field.name), field.name


def test_options_of_plugins(script, monkeypatch):
    monkeypatch.delenv("USE_LIBUV", raising=False)  # which fills in an option
    config, _, _ = torchrun.config_from_args(torchrun.parse_args(["--metrics-port=0", script]))
    assert config.options == {"metrics_port": "0"}
    monkeypatch.setenv("PET_METRICS_PORT", "1")
    config, _, _ = torchrun.config_from_args(torchrun.parse_args([script]))
    assert config.options == {"metrics_port": "1"}


def test_the_settings_file_is_used(script, tmp_path, monkeypatch, caplog):
    (tmp_path / "plaunch.toml").write_text('max-restarts = 3\nrole = "r"\n')
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.INFO, "plaunch"):
        args = torchrun.parse_args(["--max-restarts=1", script])
        config, _, _ = torchrun.config_from_args(args)
    assert (config.max_restarts, config.role) == (1, "r")
    assert "settings from plaunch.toml" in caplog.text
    config, _, _ = torchrun.config_from_args(torchrun.parse_args(["--config=", script]))
    assert (config.max_restarts, config.role) == (0, "default")


def test_a_selected_plugin_is_used(tmp_path, monkeypatch):
    (tmp_path / "mark.py").write_text(
        "import plaunch\n"
        "@plaunch.hookimpl\n"
        "def plaunch_worker_env(worker, env):\n"
        "    return {'MARK': f'rank {worker.global_rank}'}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    script = tmp_path / "train.py"
    script.write_text(
        "import os\nopen(__file__ + os.environ['RANK'], 'w').write(os.environ['MARK'])\n"
    )
    torchrun.main(["--nproc-per-node=2", "-p", "mark", str(script)])
    assert [(tmp_path / f"train.py{rank}").read_text() for rank in "01"] == ["rank 0", "rank 1"]


def test_an_unknown_plugin_is_an_error(script):
    with pytest.raises(UnknownNameError, match="-p nosuchplugin"):
        torchrun.main(["-p", "nosuchplugin", script])


def test_a_configuration_cannot_contain_plugins(script):
    with pytest.raises(UsageError, match=r"-p mark.*plugins="):
        torchrun.config_from_args(torchrun.parse_args(["-p", "mark", script]))
