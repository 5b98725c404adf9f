"""The signal policy that behaves as torchrun does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.errors import UsageError
from plaunch.process import DEFAULT_SIGNALS, SignalAction, parse_signals

if TYPE_CHECKING:
    import signal

    from plaunch.plugin import PluginContext


class TorchrunSignalPolicy:
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
        self._signals = parse_signals(names)

    def signals(self) -> tuple[signal.Signals, ...]:
        """The listed signals, in the order of the list."""
        return self._signals

    def action(self, signum: signal.Signals) -> SignalAction:
        """STOP for a listed signal; IGNORE for one that this policy never asked for."""
        return SignalAction.STOP if signum in self._signals else SignalAction.IGNORE
