"""What a launch makes of its settings."""

from __future__ import annotations

import sys

import pytest
from plaunch import LaunchConfig
from plaunch.errors import PluginLoadError
from plaunch.launch.prepare import LaunchRequest, create_rendezvous, prepare
from plaunch.testing import FakeRendezvous, plugin_manager


class Manager:
    """Notes how long the factory of a backend may take."""

    def make(self, kind, name, *given, seconds):
        self.seconds = seconds
        return FakeRendezvous()


@pytest.mark.parametrize(
    ("join_timeout", "seconds"),
    [(None, 600), ("30", 600), ("900.5", 900.5), ("15 minutes", 600)],
)
def test_a_backend_has_time_to_connect(join_timeout, seconds) -> None:
    """One that is written for torchrun may wait for its store while its handler is created."""
    manager = Manager()
    configs = {} if join_timeout is None else {"join_timeout": join_timeout}
    config = LaunchConfig(1, 1, 1, run_id="job", rdzv_configs=configs)
    create_rendezvous(config, manager, None)
    assert manager.seconds == seconds


@pytest.mark.parametrize(
    ("entrypoint", "args", "command"),
    [
        (sys.executable, ["-u", "train.py", "-", "x"], ["train.py", "-", "x"]),
        (sys.executable, ["-u", "-m", "train", "-x"], ["train", "-x"]),
        (sys.executable, ["-u", "-", "train.py"], ["<stdin>", "train.py"]),
        ("/bin/sh", ["-c", "true"], ["/bin/sh", "-c", "true"]),
        (print, [1], ["print"]),
    ],
    ids=str,
)
def test_a_launch_is_named_after_its_script(entrypoint, args, command):
    request = LaunchRequest(LaunchConfig(1, 1, 1), entrypoint, args)
    assert request.command == command
    assert request.name == command[0]


def test_health_checks_need_the_plugin_that_runs_them() -> None:
    config = LaunchConfig(1, 1, 1, run_id="job", health_checks=["memory"])
    with pytest.raises(PluginLoadError, match="no plugin can run the health checks"):
        prepare(config, plugin_manager(words=["no:doctor"]))


def test_without_the_plugin_that_knows_the_options_late_exits_are_only_reported() -> None:
    config = LaunchConfig(1, 1, 1, run_id="job")
    rules = prepare(config, plugin_manager(words=["no:hang"])).exit_rules
    assert rules.find_places is None
    assert prepare(config, plugin_manager()).exit_rules.find_places is not None
