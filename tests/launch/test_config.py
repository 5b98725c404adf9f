"""The configuration of a launch."""

from __future__ import annotations

import pytest
from plaunch import LaunchConfig
from plaunch.errors import UsageError


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    monkeypatch.delenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", raising=False)


def test_defaults_are_torchruns_but_for_the_backend():
    config = LaunchConfig(1, 2, 3)
    assert (config.min_nodes, config.max_nodes, config.nproc_per_node) == (1, 2, 3)
    assert (config.role, config.max_restarts, config.start_method) == ("default_role", 3, "spawn")
    assert (config.monitor_interval, config.shutdown_timeout) == (0.1, 30)
    assert config.rdzv_backend == "static"


def test_the_grace_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "2.5")
    assert LaunchConfig(1, 1, 1).shutdown_timeout == 2.5
    assert LaunchConfig(1, 1, 1, shutdown_timeout=7).shutdown_timeout == 7
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "soon")
    with pytest.raises(UsageError, match="TORCH_ELASTIC_SHUTDOWN_TIMEOUT is 'soon'"):
        LaunchConfig(1, 1, 1)


def test_parameters_with_options_of_their_own_are_no_options_of_the_backend():
    with pytest.raises(UsageError, match=r"'run_id' is not an option .*; set it with --rdzv-id"):
        LaunchConfig(1, 1, 1, rdzv_configs={"run_id": "x"})


def test_the_older_time_out_becomes_an_option_of_the_backend():
    given = {"rank": 1}
    config = LaunchConfig(1, 1, 1, rdzv_timeout=60, rdzv_configs=given)
    assert config.rdzv_configs == {"rank": 1, "timeout": 60}
    assert given == {"rank": 1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"min_nodes": 0}, "node range is 0:2"),
        ({"min_nodes": 3}, "node range is 3:2"),
        ({"nproc_per_node": 0}, "nproc_per_node is 0"),
        ({"max_restarts": -1}, "max_restarts is -1"),
        ({"monitor_interval": 0}, r"monitor_interval \(--monitor-interval\) is 0"),
        ({"start_method": "beam"}, "start_method 'beam'.*choices: spawn, fork, forkserver"),
        ({"shutdown_timeout": -1}, r"shutdown_timeout \(--shutdown-timeout\) is -1"),
        ({"exit_barrier_timeout": -1}, r"exit_barrier_timeout \(--exit-barrier-timeout\) is -1"),
        ({"node_rank": -1}, "node rank -1"),
    ],
)
def test_bad_values_are_named(changes, message):
    with pytest.raises(UsageError, match=message):
        LaunchConfig(**{"min_nodes": 1, "max_nodes": 2, "nproc_per_node": 1, **changes})


def test_settings_are_the_fields_by_name():
    settings = LaunchConfig(1, 2, 3, role="trainer").settings()
    assert settings["role"] == "trainer"
    assert settings["max_nodes"] == 2
