"""A signal policy: `--signal-policy=usr1-stops` lets SIGUSR1 stop the job, and Ctrl-C as ever.

Some schedulers announce the end of an allocation with SIGUSR1. Under this policy the workers are
then sent SIGUSR1, may write a checkpoint, and have `--shutdown-timeout` seconds to end.
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
        """The signals that plaunch shall handle."""
        return self._signals

    def action(self, signum: signal.Signals) -> SignalAction:
        """All of them stop the job."""
        del signum
        return SignalAction.STOP
