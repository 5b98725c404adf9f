"""The errors of plaunch itself, each with its exit code.

The failure of a worker is a `plaunch.process.ChildFailedError`, with that worker's exit code.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import signal


class ExitCode(enum.IntEnum):
    """The launcher's own exit codes; any other code is a worker's, or 128+n for signal n."""

    __str__ = int.__repr__  # as from Python 3.11 on

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
    COMMAND_SUSPENDED = 117


class PlaunchError(Exception):
    """The root of every exception that plaunch raises on purpose."""

    exit_code: ClassVar[int] = ExitCode.INTERNAL


class UsageError(PlaunchError, ValueError):
    """A value given by the user is invalid; nothing has been started yet."""

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
    """The ranks of a value by local rank are not exactly the expected ones.

    torchrun raises `RuntimeError`.
    """


class NodeRangeError(UsageError, RuntimeError):
    """A number of nodes is neither a number nor a range.

    torchrun raises `RuntimeError` for some of these, and `ValueError` for others.
    """


class TimerError(UsageError, RuntimeError):
    """There is no timer client, or its request is too long; torchrun raises `RuntimeError`."""


class ThreadStartError(PlaunchError, RuntimeError):
    """The system cannot start another thread; running workers have been stopped."""


class WorkerStartError(PlaunchError, RuntimeError):
    """The system cannot start a worker; those started before it have been stopped."""


class WorkerStoreError(PlaunchError, RuntimeError):
    """The workers' store cannot be hosted, or has ended before the workers."""

    exit_code = ExitCode.CONTROL_PLANE_LOST


class WorkerStoreHostError(WorkerStoreError):
    """No interpreter on this host can serve the workers' store; a restart cannot fix this."""


class ProgramNotFoundError(WorkerStartError, UsageError, FileNotFoundError):
    """The program to run does not exist."""

    exit_code = ExitCode.USAGE


class ProgramNotExecutableError(WorkerStartError, UsageError, PermissionError):
    """The program to run exists but cannot be executed."""

    exit_code = ExitCode.USAGE


class PluginError(PlaunchError, RuntimeError):
    """A plugin cannot be loaded, fails, or violates the contract of its hook or kind."""

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
    """The store behind the rendezvous cannot be reached; the name is torchrun's.

    Args:
        names_store: whether the text says which store that is, so that others need not.
    """

    exit_code = ExitCode.CONTROL_PLANE_LOST

    def __init__(self, *args: object, names_store: bool = False) -> None:
        super().__init__(*args)
        self.names_store = names_store


class RendezvousStateError(RendezvousError):
    """The store has no valid rendezvous record; the name is torchrun's."""

    exit_code = ExitCode.CONTROL_PLANE_LOST


class RendezvousGracefulExitError(RendezvousError):
    """This node is not needed and leaves without an error; the name is torchrun's."""

    exit_code = ExitCode.OK


class NodeExcludedError(RendezvousError):
    """The job continues without this node, which failed too often or is not healthy."""

    exit_code = ExitCode.NODE_EXCLUDED


class UnkillableWorkerError(PlaunchError, RuntimeError):
    """A worker has not ended in time after SIGKILL, as in uninterruptible sleep."""

    exit_code = ExitCode.UNKILLABLE_WORKER


class SignalException(PlaunchError):  # noqa: N818 - the name is torchrun's
    """A stop signal ended the job; `sigval` is the signal. Name and signature are torchrun's."""

    def __init__(self, msg: str, sigval: signal.Signals) -> None:
        super().__init__(msg)
        self.sigval = sigval

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.sigval)


def text_of_error(error: BaseException) -> str:
    """The text of an exception, also if its `__str__` fails."""
    try:
        return str(error)
    except Exception as failed:  # noqa: BLE001 - user code; it must not prevent the report
        return f"<its text is not available: {type(failed).__name__}>"


def one_line(error: BaseException) -> str:
    """An exception as one line for a message: its type and its text, which may quote others."""
    from plaunch.texts import printable  # errors only

    text = printable(" ".join(text_of_error(error).split()))
    if isinstance(error, OSError) and error.errno is not None and error.filename is None:
        text += _attempted(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _attempted(error: OSError) -> str:
    """Return the line that failed, in parentheses: the error itself does not name a file."""
    import traceback  # errors only

    frames = traceback.extract_tb(error.__traceback__)
    line = frames[-1].line if frames else ""
    return f" (in {frames[-1].name}: {line})" if line else ""
