"""A logs spec: `--logs-specs=flat --log-dir=DIR` writes all files of a job to one folder.

The default logs spec has a folder for each attempt and each local rank. This one has file names
that sort by start and global rank: `0-rank00012.out`, `0-rank00012.err`. It writes both streams of
every worker to files, and those in `--tee` to the console too. Without `--log-dir` there are no
files, and all output goes to the console.
"""

from __future__ import annotations

import os

from plaunch.errors import LogDirectoryError
from plaunch.process import LogsDest, LogsSpecs, Std, to_map


class FlatLogsSpecs(LogsSpecs):
    """One flat folder of log files, named by start of the workers and by global rank."""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return the files of one start; `envs` are the workers' environments by local rank."""
        folder = self.root_log_dir
        if folder is None:
            return LogsDest(
                stdouts=dict.fromkeys(envs, ""),
                stderrs=dict.fromkeys(envs, ""),
                error_files=dict.fromkeys(envs, ""),
            )
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise LogDirectoryError(
                f"the log directory {folder!r} cannot be made: {error.strerror}; choose another "
                "with --log-dir"
            ) from error
        dest = LogsDest()
        tee = to_map(self._tee, len(envs))
        for local_rank, env in envs.items():
            start = env.get("PLAUNCH_ROUND", env.get("TORCHELASTIC_RESTART_COUNT", "0"))
            rank = int(env.get("RANK", local_rank))
            path = os.path.join(folder, f"{start}-rank{rank:05}")
            dest.stdouts[local_rank] = path + ".out"
            dest.stderrs[local_rank] = path + ".err"
            dest.error_files[local_rank] = path + ".error.json"
            shown = self._local_ranks_filter is None or local_rank in self._local_ranks_filter
            if shown and tee[local_rank] & Std.OUT:
                dest.tee_stdouts[local_rank] = dest.stdouts[local_rank]
            if shown and tee[local_rank] & Std.ERR:
                dest.tee_stderrs[local_rank] = dest.stderrs[local_rank]
            env["TORCHELASTIC_ERROR_FILE"] = dest.error_files[local_rank]
        return dest

    @property
    def root_log_dir(self) -> str | None:
        """The folder of `--log-dir`; None without one, and for /dev/null."""
        return None if self._root_log_dir in (None, os.devnull) else self._root_log_dir
