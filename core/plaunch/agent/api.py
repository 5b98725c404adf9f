"""The agent as its users see it."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plaunch.agent.worker import RunResult, WorkerGroup

DEFAULT_ROLE = "default"


class ElasticAgent(abc.ABC):
    """Runs the workers of one node from the first round to the end; the name is torchrun's."""

    @abc.abstractmethod
    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Run the workers, restarting them up to `max_restarts` times, and say how it ended.

        Failures of workers are in the result; whatever else goes wrong is raised.

        Raises:
            SignalException: a stop signal ended the job.
            RendezvousError: the nodes could not meet.
            PlaunchError: any other failure of the launcher or of a plugin.
        """

    @abc.abstractmethod
    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        """The agent's worker group; it changes while the agent runs."""
