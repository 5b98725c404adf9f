"""The signal policies `torchrun` and `notify`, and what they read from the settings of a launch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from plaunch.errors import UsageError
from plaunch.process import DEFAULT_SIGNALS, SignalAction, parse_signals

if TYPE_CHECKING:
    import signal
    from collections.abc import Collection
    from typing import NoReturn

    from plaunch.plugin import PluginContext


DEFAULT_NOTIFY_SIGNALS = "SIGUSR1,SIGUSR2"


class StopSignalPolicy:
    """Each listed signal stops the workers, with that signal, and ends the job."""

    def __init__(self, signals: Collection[signal.Signals]) -> None:
        self._signals = tuple(signals)

    def signals(self) -> tuple[signal.Signals, ...]:
        """The listed signals, in the order of the list."""
        return self._signals

    def action(self, signum: signal.Signals) -> SignalAction:
        """STOP for a listed signal; IGNORE for others."""
        return SignalAction.STOP if signum in self._signals else SignalAction.IGNORE


def policy_of_environment() -> StopSignalPolicy:
    """The policy of an agent that was created without one, as in torchrun's library.

    Raises:
        UsageError: `TORCHELASTIC_SIGNALS_TO_HANDLE` has a word that is not a signal.
    """
    names = os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE", DEFAULT_SIGNALS)
    return StopSignalPolicy(parse_signals(names))


class TorchrunSignalPolicy(StopSignalPolicy):
    """Each signal of `--signals-to-handle` stops the workers, with that signal, and ends the job.

    By default these are torchrun's four signals. With an empty list the launcher handles no signal:
    each has its default action.

    Raises:
        UsageError: the list has a word that is not a signal, or a signal that cannot be handled; or
            `--notify-signals` is given.
    """

    def __init__(self, context: PluginContext) -> None:
        names = notify_signals(context)
        if names is not None:
            reject_notify_signals(names)
        super().__init__(stop_signals(context))


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


def stop_signals(context: PluginContext) -> tuple[signal.Signals, ...]:
    """The signals that stop the job of a launch.

    Raises:
        UsageError: the list has a word that is not a signal, or a signal that cannot be handled.
    """
    names = context.settings.get("signals_to_handle")
    if names is None:
        names = DEFAULT_SIGNALS
    if not isinstance(names, str):
        raise UsageError(
            f"signals_to_handle is {names!r}; write names in one string, as in {DEFAULT_SIGNALS!r}"
        )
    return parse_signals(names)


def notify_signals(context: PluginContext) -> object:
    """The value of `--notify-signals` in a launch; None if it is not given."""
    options = context.settings.get("options")
    return options.get("notify_signals") if isinstance(options, dict) else None


def reject_notify_signals(names: object) -> NoReturn:
    """Reject `--notify-signals`, which torchrun's policy does not have.

    Raises:
        UsageError: always.
    """
    raise UsageError(
        f"notify_signals is {names!r} (--notify-signals), which the signal policy 'torchrun' does "
        "not have; add --signal-policy=notify"
    )
