"""plaunch with only one of its own plugins of each kind."""

from __future__ import annotations

import json

import pytest

KEPT = {
    "plaunch.rendezvous": "static = plaunch_rendezvous_static:create_static_handler",
    "torchrun.logs_specs": "default = plaunch_logs_default:DefaultLogsSpecs",
    "plaunch.event_handlers": "null = plaunch_events.null:NullEventHandler",
    "plaunch.device_counts": "cpu = plaunch_devices:count_cpu",
    "plaunch.signal_policies": "torchrun = plaunch_signals.policies:TorchrunSignalPolicy",
    "plaunch.restart_policies": "standard = plaunch_restarts.policies:StandardRestartPolicy",
    "plaunch.options": "dry_run = plaunch_command_line.options:DryRun",
    "plaunch.schedulers": "none = plaunch_schedulers.filling:find_no_allocation",
}
# Plugins without an entry point here cannot be imported either, except libraries of the others.
SITECUSTOMIZE = """\
import sys

KEPT = {kept!r}


class Removed:
    @staticmethod
    def find_spec(name, path=None, target=None):
        root = name.partition(".")[0]
        if root.startswith("plaunch_") and root not in KEPT:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Removed)
"""
NAMES = """\
from plaunch.plugin import ALL_KINDS, installed_plugins

found = [entry for kind in ALL_KINDS for entry in installed_plugins().usable(kind)]
print(*sorted(entry.name for entry in found if entry.distribution.key == "plaunch"))
"""


@pytest.fixture
def bare(plaunch, tmp_path):
    """A command line that finds only these plugins."""
    site = tmp_path / "site"
    info = site / "plaunch-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plaunch\nVersion: 0.1.0\n")
    lines = "".join(f"[{group}]\n{entry}\n" for group, entry in KEPT.items())
    (info / "entry_points.txt").write_text(lines)
    kept = {entry.partition("= ")[2].partition(":")[0].partition(".")[0] for entry in KEPT.values()}
    kept.add("plaunch_network")
    (site / "sitecustomize.py").write_text(SITECUSTOMIZE.format(kept=kept))
    plaunch.environ["PYTHONPATH"] = str(site)
    return plaunch


def test_they_are_gone(bare):
    listed = bare.run(bare.write("names.py", NAMES)).stdout.split()
    assert listed == sorted(entry.partition(" ")[0] for entry in KEPT.values())
    shown = bare.run("--help").stdout
    assert "--nproc-per-node" in shown
    assert not [option for option in ("--doctor", "--metrics-port", "--devices") if option in shown]


def test_it_launches(bare, tmp_path):
    code = "import os; open(os.environ['RANK'], 'w').close()"
    done = bare.run("--nproc-per-node=2", bare.write("train.py", code))
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "0").exists()
    assert (tmp_path / "1").exists()


def test_it_restarts_and_reports(bare):
    done = bare.run("--max-restarts=1", bare.write("train.py", "raise SystemExit(7)"))
    assert done.returncode == 7
    assert "exit code 7" in done.stderr


def test_it_plans(bare):
    done = bare.run("--dry-run=json", bare.write("train.py", ""))
    assert json.loads(done.stdout)["job"]["backend"] == "static"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rdzv-backend=c10d"], "rendezvous backend 'c10d' is unknown"),
        (["--event-log-handler=jsonl"], "event handler 'jsonl' is unknown"),
        (["--scheduler=slurm"], "there is no option --scheduler"),
        (["--signal-policy=notify"], "signal policy 'notify' is unknown"),
        (["--metrics-port=0"], "there is no option --metrics-port"),
    ],
)
def test_missing_plugins_are_named(bare, words, message):
    done = bare.run(*words, bare.write("train.py", ""))
    assert done.returncode == 2
    assert message in done.stderr
