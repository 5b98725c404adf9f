"""The logs of a call that brings no logs spec: the smallest layout there is.

Such a call may come from any program, which has chosen no plugin. A launch has torchrun's layout,
from the logs spec `default`.
"""

from __future__ import annotations

import os

from plaunch.process.streams.log_folders import TemporaryFolder, create_log_folder, folder_name
from plaunch.process.streams.logs import LogsDest, LogsSpecs


class StartLogs(LogsSpecs):
    """Each start has a folder of its own: `<log_dir>/<run_id>_<random>/attempt_<n>/<local_rank>/`.

    Without `log_dir` it is a temporary one, which `close` removes unless streams have gone there.
    With `os.devnull` there are no files.
    """

    _temporary: TemporaryFolder | None = None

    @property
    def root_log_dir(self) -> str | None:
        """`log_dir` as given."""
        return self._root_log_dir

    @property
    def temporary_dir(self) -> str | None:
        """The folder that `close` will remove."""
        folder = self._temporary
        return None if folder is None or folder.stays else folder.path

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Create the folder of one start; that of the start before is removed if it may be.

        Raises:
            LogDirectoryError: a folder cannot be created.
        """
        self.close(succeeded=True)
        env = next(iter(envs.values()), {})
        run_id = env.get("TORCHELASTIC_RUN_ID") or "run"
        folder = ""
        if not self._root_log_dir:
            self._temporary = TemporaryFolder.create(run_id, has_logs=self.has_logs(envs))
            folder = self._temporary.path if self._temporary is not None else ""
        elif self._root_log_dir != os.devnull:
            folder = create_log_folder(self._root_log_dir, run_id)
        if folder:
            attempt = folder_name(env.get("TORCHELASTIC_RESTART_COUNT") or "0")
            folder = os.path.join(folder, f"attempt_{attempt}")
        return self.place(envs, folder)

    def close(self, succeeded: bool) -> None:
        """Remove the temporary folder of error files."""
        del succeeded
        if self._temporary is not None:
            self._temporary.remove()
            self._temporary = None
