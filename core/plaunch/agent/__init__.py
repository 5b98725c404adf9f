"""The agent: runs the workers of one node, restarts them, and follows the nodes of the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch._lazy import attach

if TYPE_CHECKING:
    from plaunch.agent.agent import SimpleElasticAgent as SimpleElasticAgent
    from plaunch.agent.api import ElasticAgent as ElasticAgent
    from plaunch.agent.arguments import macros as macros
    from plaunch.agent.local import LocalElasticAgent as LocalElasticAgent
    from plaunch.agent.worker import GroupInfo as GroupInfo
    from plaunch.agent.worker import RunResult as RunResult
    from plaunch.agent.worker import Worker as Worker
    from plaunch.agent.worker import WorkerExit as WorkerExit
    from plaunch.agent.worker import WorkerGroup as WorkerGroup
    from plaunch.agent.worker import WorkerInfo as WorkerInfo
    from plaunch.agent.worker import WorkerSpec as WorkerSpec
    from plaunch.agent.worker import WorkerState as WorkerState

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        ".agent": "SimpleElasticAgent",
        ".api": "ElasticAgent",
        ".local": "LocalElasticAgent",
        ".arguments": "macros",
        ".worker": (
            "GroupInfo RunResult Worker WorkerExit WorkerGroup WorkerInfo WorkerSpec WorkerState"
        ),
    },
)
