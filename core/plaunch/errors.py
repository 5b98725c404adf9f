"""Every way in which plaunch itself can fail, and the exit code of each.

A worker's failure is reported by `plaunch.process.ChildFailedError`, which carries that worker's
own exit code; everything here is the launcher's.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import signal


class ExitCode(enum.IntEnum):
    """The launcher's own exit codes; any other code is a worker's, or 128+n for signal n."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    PLUGIN = 110
    RENDEZVOUS_TIMEOUT = 111
    RENDEZVOUS_CLOSED = 112
    CONTROL_PLANE_LOST = 113
    UNKILLABLE_WORKER = 114
    NODE_EXCLUDED = 115
    HANG = 116


class PlaunchError(Exception):
    """The root of every exception that plaunch raises on purpose."""

    exit_code: ClassVar[int] = ExitCode.INTERNAL


class UsageError(PlaunchError, ValueError):
    """A value that the user gave cannot be used; nothing has been started yet."""

    exit_code = ExitCode.USAGE


class UnknownNameError(UsageError):
    """A plugin name that no distribution offers."""


class DuplicateNameError(UsageError):
    """A plugin name that several distributions offer, selected without a distribution."""


class LogDirectoryError(UsageError, NotADirectoryError):
    """The log directory is a file, or cannot be written to.

    torchrun raises `NotADirectoryError` for the first of the two.
    """


class RankMappingError(UsageError, RuntimeError):
    """A value by local rank does not name exactly the ranks that it must.

    torchrun raises `RuntimeError`.
    """


class NodeRangeError(UsageError, RuntimeError):
    """A number of nodes is neither a number nor a range.

    torchrun raises `RuntimeError` for some of these, and `ValueError` for others.
    """


class TimerError(UsageError, RuntimeError):
    """There is no timer client, or its request is too long; torchrun raises `RuntimeError`."""


class ThreadStartError(PlaunchError, RuntimeError):
    """The system gives the launcher no further thread; workers that ran have been stopped."""


class WorkerStartError(PlaunchError, RuntimeError):
    """The system refused to start a worker; those started before it have been stopped."""


class WorkerStoreError(PlaunchError, RuntimeError):
    """The store in which the workers meet cannot be hosted, or has ended before them."""

    exit_code = ExitCode.CONTROL_PLANE_LOST


class WorkerStoreHostError(WorkerStoreError):
    """No interpreter on this host can serve it, which no restart would change."""


class ProgramNotFoundError(WorkerStartError, UsageError, FileNotFoundError):
    """The program to run does not exist."""

    exit_code = ExitCode.USAGE


class ProgramNotExecutableError(WorkerStartError, UsageError, PermissionError):
    """The program to run exists but the system does not execute it."""

    exit_code = ExitCode.USAGE


class PluginError(PlaunchError, RuntimeError):
    """A plugin is at fault: it cannot be loaded, it fails, or it breaks the rules of its hook."""

    exit_code = ExitCode.PLUGIN


class PluginLoadError(PluginError):
    """A plugin that was selected, or that is always on, cannot be imported or registered."""


class RendezvousError(PlaunchError, RuntimeError):
    """The root of all rendezvous errors; the name is torchrun's."""


class RendezvousClosedError(RendezvousError):
    """The rendezvous has been closed, or has refused this node; the name is torchrun's."""

    exit_code = ExitCode.RENDEZVOUS_CLOSED


class RendezvousTimeoutError(RendezvousError):
    """The rendezvous did not complete in time; the name is torchrun's."""

    exit_code = ExitCode.RENDEZVOUS_TIMEOUT


class RendezvousConnectionError(RendezvousError):
    """The store behind the rendezvous cannot be reached; the name is torchrun's."""

    exit_code = ExitCode.CONTROL_PLANE_LOST


class RendezvousStateError(RendezvousError):
    """What the store holds is not a valid rendezvous; the name is torchrun's."""

    exit_code = ExitCode.CONTROL_PLANE_LOST


class RendezvousGracefulExitError(RendezvousError):
    """This node is not needed and leaves without harm; the name is torchrun's."""

    exit_code = ExitCode.OK


class NodeExcludedError(RendezvousError):
    """The job goes on without this node: failures began here too often, or it is not healthy."""

    exit_code = ExitCode.NODE_EXCLUDED


class UnkillableWorkerError(PlaunchError, RuntimeError):
    """A worker did not end within the bound after SIGKILL, as one in uninterruptible sleep does."""

    exit_code = ExitCode.UNKILLABLE_WORKER


class SignalException(PlaunchError):  # noqa: N818 - the name is torchrun's
    """A stop signal ended the job; `sigval` is the signal. Name and signature are torchrun's."""

    def __init__(self, msg: str, sigval: signal.Signals) -> None:
        super().__init__(msg)
        self.sigval = sigval

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.sigval)
