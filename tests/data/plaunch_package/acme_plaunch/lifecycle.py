"""A class of hooks that is always on."""

from plaunch.plugin import hookimpl


class Recorder:
    def __init__(self):
        self.changes = []

    @hookimpl
    def plaunch_worker_env(self, worker):
        return {"ACME_RANK": str(worker.global_rank)}

    @hookimpl
    def plaunch_state_changed(self, old, new):
        self.changes.append((old, new))
