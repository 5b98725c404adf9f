"""The signal policy `notify`, which passes some signals on to the workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.errors import UsageError
from plaunch.process import SignalAction, parse_signals

from plaunch_signals.torchrun import notify_signals, stop_signals

if TYPE_CHECKING:
    import signal

    from plaunch.plugin import PluginContext

DEFAULT_NOTIFY_SIGNALS = "SIGUSR1,SIGUSR2"


class NotifySignalPolicy:
    """Passes notify signals on to the workers; stop signals stop the job, as in torchrun.

    So workers can write a checkpoint after a scheduler's warning, such as Slurm's
    `--signal=USR1@300`, and the job continues. `--notify-signals` lists the notify signals, by
    default SIGUSR1 and SIGUSR2, and `signals_to_handle` the stop signals. A default notify signal
    that the user lists as a stop signal is a stop signal.

    Raises:
        UsageError: a list is malformed, or the user listed a signal in both.
    """

    def __init__(self, context: PluginContext) -> None:
        self._stop = stop_signals(context)
        names = notify_signals(context)
        if names is None:
            listed = parse_signals(DEFAULT_NOTIFY_SIGNALS)
            self._notify = tuple(signum for signum in listed if signum not in self._stop)
            return
        self._notify = parse_signals(str(names))
        for signum in self._notify:
            if signum in self._stop:
                raise UsageError(
                    f"{signum.name} is listed to stop the job (--signals-to-handle) and to be "
                    "passed on (--notify-signals); keep one"
                )

    def signals(self) -> tuple[signal.Signals, ...]:
        """The stop signals, then the notify signals."""
        return (*self._stop, *self._notify)

    def action(self, signum: signal.Signals) -> SignalAction:
        """STOP or NOTIFY by list; IGNORE for a signal that is in neither."""
        if signum in self._stop:
            return SignalAction.STOP
        return SignalAction.NOTIFY if signum in self._notify else SignalAction.IGNORE
