"""Takes its time to be imported."""

import time

from plaunch.plugin import hookimpl

time.sleep(1.2)


class Plugin:
    @hookimpl
    def plaunch_workers_started(self):
        pass
