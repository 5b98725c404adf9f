"""The agent: runs the workers of one node, restarts them, and follows the nodes of the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.lazy import attach

if TYPE_CHECKING:
    from plaunch.agent.agent import ElasticAgent as ElasticAgent
    from plaunch.agent.agent import SimpleElasticAgent as SimpleElasticAgent
    from plaunch.agent.components import AgentServices as AgentServices
    from plaunch.agent.extensions import Control as Control
    from plaunch.agent.extensions import Extension as Extension
    from plaunch.agent.extensions import Progress as Progress
    from plaunch.agent.extensions import Snapshot as Snapshot
    from plaunch.agent.job_query import JobAnswers as JobAnswers
    from plaunch.agent.job_query import JobQuery as JobQuery
    from plaunch.agent.job_query import PublishedAnswer as PublishedAnswer
    from plaunch.agent.job_query import collect_published as collect_published
    from plaunch.agent.local import LocalElasticAgent as LocalElasticAgent
    from plaunch.agent.notifications import AfterRendezvous as AfterRendezvous
    from plaunch.agent.notifications import AgentFinished as AgentFinished
    from plaunch.agent.notifications import BeforeRendezvous as BeforeRendezvous
    from plaunch.agent.notifications import BeforeStop as BeforeStop
    from plaunch.agent.notifications import BeforeWorkers as BeforeWorkers
    from plaunch.agent.notifications import ConsoleAwaited as ConsoleAwaited
    from plaunch.agent.notifications import LaunchFinished as LaunchFinished
    from plaunch.agent.notifications import LaunchStarted as LaunchStarted
    from plaunch.agent.notifications import MembershipChanged as MembershipChanged
    from plaunch.agent.notifications import Notification as Notification
    from plaunch.agent.notifications import Preloaded as Preloaded
    from plaunch.agent.notifications import RendezvousFailed as RendezvousFailed
    from plaunch.agent.notifications import RequestReceived as RequestReceived
    from plaunch.agent.notifications import RestartDelayed as RestartDelayed
    from plaunch.agent.notifications import SignalReceived as SignalReceived
    from plaunch.agent.notifications import StateChanged as StateChanged
    from plaunch.agent.notifications import Stopping as Stopping
    from plaunch.agent.notifications import WorkerExited as WorkerExited
    from plaunch.agent.notifications import WorkerExitSeen as WorkerExitSeen
    from plaunch.agent.notifications import WorkersFailed as WorkersFailed
    from plaunch.agent.notifications import WorkersStarted as WorkersStarted
    from plaunch.agent.notifier import EventLog as EventLog
    from plaunch.agent.states import Requested as Requested
    from plaunch.agent.states import RequestKind as RequestKind
    from plaunch.agent.worker import GroupInfo as GroupInfo
    from plaunch.agent.worker import RunResult as RunResult
    from plaunch.agent.worker import Worker as Worker
    from plaunch.agent.worker import WorkerGroup as WorkerGroup
    from plaunch.agent.worker import WorkerSpec as WorkerSpec
    from plaunch.agent.worker import WorkerState as WorkerState
    from plaunch.agent.worker import macros as macros
    from plaunch.agent.worker import worker_environment as worker_environment
    from plaunch.agent.worker_store import OpenStore as OpenStore
    from plaunch.agent.worker_store import StoreRound as StoreRound
    from plaunch.agent.worker_store import WorkerStore as WorkerStore
    from plaunch.agent.workers import Workers as Workers
    from plaunch.process.components import WorkerExit as WorkerExit
    from plaunch.process.components import WorkerInfo as WorkerInfo

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        ".agent": "ElasticAgent SimpleElasticAgent",
        ".notifications": (
            "AfterRendezvous AgentFinished BeforeRendezvous BeforeStop BeforeWorkers "
            "ConsoleAwaited LaunchFinished LaunchStarted MembershipChanged Notification "
            "Preloaded RendezvousFailed RequestReceived RestartDelayed SignalReceived StateChanged "
            "Stopping WorkerExitSeen WorkerExited WorkersFailed WorkersStarted"
        ),
        ".states": "RequestKind Requested",
        ".local": "LocalElasticAgent",
        ".notifier": "EventLog",
        ".components": "AgentServices",
        ".extensions": "Control Extension Progress Snapshot",
        ".job_query": "JobAnswers JobQuery PublishedAnswer collect_published",
        ".worker": (
            "GroupInfo RunResult Worker WorkerGroup WorkerSpec WorkerState macros "
            "worker_environment"
        ),
        "..process.components": "WorkerExit WorkerInfo",
        ".worker_store": "OpenStore StoreRound WorkerStore",
        ".workers": "Workers",
    },
)
