"""Changes what SIGCHLD does while it is imported."""

import signal

from plaunch.plugin import hookimpl

signal.signal(signal.SIGCHLD, signal.SIG_IGN)


class Plugin:
    @hookimpl
    def plaunch_workers_started(self):
        pass
