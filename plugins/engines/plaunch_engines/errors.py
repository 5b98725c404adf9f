"""Why the command ends a job on an engine."""

from __future__ import annotations

from plaunch.errors import ExitCode, PlaunchError


class StartError(PlaunchError):
    """Agents cannot be started on enough nodes."""

    exit_code = ExitCode.RENDEZVOUS_TIMEOUT


class NodesLostError(PlaunchError):
    """Nodes are lost, and too few are left for the job."""

    exit_code = ExitCode.RENDEZVOUS_TIMEOUT


class CommandSuspendedError(PlaunchError):
    """The command did not run for so long that the agents have ended the job."""

    exit_code = ExitCode.COMMAND_SUSPENDED
