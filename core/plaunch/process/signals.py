"""The contract of signal policies, which decide what a signal to the launcher means."""

from __future__ import annotations

import enum
import signal
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from plaunch.errors import SignalException, UsageError

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = [
    "DEFAULT_SIGNALS",
    "KEYS",
    "SignalAction",
    "SignalException",
    "SignalPolicy",
    "is_same_request",
    "parse_signals",
]

DEFAULT_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"  # those that stop a job, in torchrun's order
KEYS = (signal.SIGINT, signal.SIGQUIT)  # the signals of a terminal's keys
# Seconds within which SIGTERM, SIGHUP and the like are one request, however many come: Slurm sends
# SIGTERM twice within milliseconds, systemd SIGTERM and SIGHUP.
_SAME_REQUEST = 2.0
# The same for SIGINT and SIGQUIT, which a terminal sends: no hand presses two keys within it, but a
# wrapper in the launcher's process group may forward what the launcher gets as well.
_SAME_KEY = 0.2


def is_same_request(signum: signal.Signals, seconds: float) -> bool:
    """Whether a stop signal belongs to the same request as the first one, whichever that was.

    Args:
        signum: the signal.
        seconds: how long after the first one it has come.
    """
    return seconds <= (_SAME_KEY if signum in KEYS else _SAME_REQUEST)


class SignalAction(enum.Enum):
    """What the launcher does with a signal that it received."""

    STOP = "stop"  # stop the workers with this signal and end the job
    NOTIFY = "notify"  # forward it to the workers; the job continues
    IGNORE = "ignore"


@runtime_checkable
class SignalPolicy(Protocol):
    """Decides which signals the launcher handles, and what each one means. Plugins implement it.

    Both methods run in the launcher. `action` is called by the agent's loop, not inside the signal
    handler, so it may log and take locks. It must not block: a third party's policy that does not
    return within a second is not called again.
    """

    def signals(self) -> Collection[signal.Signals]:
        """Return the signals to install a handler for; all others keep their disposition."""

    def action(self, signum: signal.Signals) -> SignalAction:
        """Return what the launcher does with `signum`, one of `signals()`."""


def parse_signals(names: str) -> tuple[signal.Signals, ...]:
    """Parse `"SIGTERM,SIGINT"`, the form of torchrun's `--signals-to-handle`.

    Raises:
        UsageError: a name is not a signal of this system, or one that no handler can catch.
    """
    parsed: list[signal.Signals] = []
    for name in filter(None, (part.strip() for part in names.split(","))):
        try:
            signum = signal.Signals[name.upper()]
        except KeyError:
            raise UsageError(
                f"{name!r} is not a signal of this system; write names such as SIGTERM,SIGINT"
            ) from None
        if signum in (signal.SIGKILL, signal.SIGSTOP):
            raise UsageError(f"{name!r} cannot be handled by any process; leave it out")
        if signum not in parsed:
            parsed.append(signum)
    return tuple(parsed)
