"""A logs spec without files."""

from __future__ import annotations

from plaunch.process import LogsDest, LogsSpecs


class NoFiles(LogsSpecs):
    """Workers inherit the launcher's streams, except for the given fields of `LogsDest`."""

    root_log_dir = None

    def __init__(self, **dest):
        super().__init__()
        self.dest = dest

    def reify(self, envs):
        nothing = dict.fromkeys(envs, "")
        return LogsDest(**{"stdouts": nothing, "stderrs": nothing, **self.dest})


class WithFolder(NoFiles):
    """The same, with a folder that remains after the launch."""

    def __init__(self, folder):
        super().__init__()
        self.root_log_dir = folder
