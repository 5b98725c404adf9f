"""The signal policies that behave as torchrun does."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from plaunch.errors import UsageError
from plaunch.process import DEFAULT_SIGNALS, SignalAction, parse_signals

if TYPE_CHECKING:
    import signal
    from collections.abc import Collection

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
        UsageError: the list has a word that is not a signal, or not one that can be handled.
    """

    def __init__(self, context: PluginContext) -> None:
        names = context.settings.get("signals_to_handle")
        if names is None:
            names = DEFAULT_SIGNALS
        if not isinstance(names, str):
            raise UsageError(
                f"signals_to_handle is {names!r}; write names in one string, as in "
                f"{DEFAULT_SIGNALS!r}"
            )
        super().__init__(parse_signals(names))
