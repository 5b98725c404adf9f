"""The agent of one node, and its health check."""

from __future__ import annotations

from plaunch.agent import ElasticAgent as ElasticAgent
from plaunch.agent import LocalElasticAgent as LocalElasticAgent
from plaunch.agent import RunResult as RunResult
from plaunch.agent import SimpleElasticAgent as SimpleElasticAgent
from plaunch.agent import Worker as Worker
from plaunch.agent import WorkerGroup as WorkerGroup
from plaunch.agent import WorkerSpec as WorkerSpec
from plaunch.agent import WorkerState as WorkerState

from plaunch_torchrun.health import (
    TORCHELASTIC_HEALTH_CHECK_PORT as TORCHELASTIC_HEALTH_CHECK_PORT,
)
from plaunch_torchrun.health import HealthCheckServer as HealthCheckServer
from plaunch_torchrun.health import create_healthcheck_server as create_healthcheck_server

TORCHELASTIC_ENABLE_FILE_TIMER = "TORCHELASTIC_ENABLE_FILE_TIMER"
TORCHELASTIC_TIMER_FILE = "TORCHELASTIC_TIMER_FILE"
TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"
