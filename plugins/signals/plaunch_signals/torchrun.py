"""The signal policies that behave as torchrun does."""

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


class StopOn:
    """Every listed signal stops the workers, with that signal, and ends the job."""

    def __init__(self, signals: Collection[signal.Signals]) -> None:
        self._signals = tuple(signals)

    def signals(self) -> tuple[signal.Signals, ...]:
        """The listed signals, in the order of the list."""
        return self._signals

    def action(self, signum: signal.Signals) -> SignalAction:
        """STOP for a listed signal; IGNORE for one that this policy never asked for."""
        return SignalAction.STOP if signum in self._signals else SignalAction.IGNORE


def policy_of_environment() -> StopOn:
    """The policy of an agent that is given none, as in torchrun's library.

    Raises:
        UsageError: `TORCHELASTIC_SIGNALS_TO_HANDLE` has a word that is not a signal.
    """
    names = os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE", DEFAULT_SIGNALS)
    return StopOn(parse_signals(names))


class TorchrunSignalPolicy(StopOn):
    """Every listed signal stops the workers, with that signal, and ends the job.

    The list is the setting `signals_to_handle` (`--signals-to-handle`), torchrun's four by
    default. An empty list handles nothing: each signal then does to the launcher what it does to
    any program.

    Raises:
        UsageError: the list has a word that is not a signal, or not one that can be handled; or
            there are signals to pass on (`--notify-signals`).
    """

    def __init__(self, context: PluginContext) -> None:
        names = notify_signals(context)
        if names is not None:
            refuse_notify_signals(names)
        super().__init__(stop_signals(context))


def stop_signals(context: PluginContext) -> tuple[signal.Signals, ...]:
    """The signals that stop the job of a launch.

    Raises:
        UsageError: the list has a word that is not a signal, or not one that can be handled.
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
    """What `--notify-signals` says in a launch; None if it is not given."""
    options = context.settings.get("options")
    return options.get("notify_signals") if isinstance(options, dict) else None


def refuse_notify_signals(names: object) -> NoReturn:
    """Refuse signals to pass on, of which torchrun's policy knows none.

    Raises:
        UsageError: always.
    """
    raise UsageError(
        f"notify_signals is {names!r} (--notify-signals), which the signal policy 'torchrun' does "
        "not know; add --signal-policy=notify"
    )
