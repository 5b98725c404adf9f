"""A signal policy: `--signal-policy=usr1-stops` stops the job on SIGUSR1 too.

Some schedulers announce the end of an allocation with SIGUSR1. With this policy the workers then
get SIGUSR1, and have `--shutdown-timeout` seconds to write a checkpoint and exit.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from plaunch.process import SignalAction, parse_signals

if TYPE_CHECKING:
    from collections.abc import Collection

    from plaunch.plugin import PluginContext


class Usr1StopsPolicy:
    """Stops the job on SIGUSR1 and on the signals of `--signals-to-handle`."""

    def __init__(self, context: PluginContext) -> None:
        listed = str(context.settings.get("signals_to_handle", "SIGTERM,SIGINT"))
        self._signals = {signal.SIGUSR1, *parse_signals(listed)}

    def signals(self) -> Collection[signal.Signals]:
        """Return the signals that plaunch handles."""
        return self._signals

    def action(self, signum: signal.Signals) -> SignalAction:
        """Stop the job on each of them."""
        del signum
        return SignalAction.STOP
