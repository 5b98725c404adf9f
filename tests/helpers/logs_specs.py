"""A logs spec that has no files."""

from __future__ import annotations

from plaunch.process import LogsDest, LogsSpecs


class NoFiles(LogsSpecs):
    """All output goes where the launcher's own goes, but for what is given of a `LogsDest`."""

    root_log_dir = None

    def __init__(self, **dest):
        super().__init__()
        self.dest = dest

    def reify(self, envs):
        nothing = dict.fromkeys(envs, "")
        return LogsDest(**{"stdouts": nothing, "stderrs": nothing, **self.dest})
