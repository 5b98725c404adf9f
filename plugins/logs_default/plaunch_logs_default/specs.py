"""The files of one launch: torchrun's layout, in folders that are never reused."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

from plaunch.errors import LogDirectoryError
from plaunch.process import LogsDest, LogsSpecs, Std, to_map, why_not_writable

from plaunch_logs_default.folders import (
    TemporaryFolder,
    absolute,
    create_log_folder,
    create_temporary_log_folder,
    folder_name,
    planned_temporary_folder,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from plaunch.doctor import DoctorContext, Finding
    from plaunch.process import Sink, Streams

_MAX_PATH = 3000  # bytes; the system accepts 4096, and the folders inside need some of them


class DefaultLogsSpecs(LogsSpecs):
    """Files below `<log_dir>/<run_id>_<random>/attempt_<n>/<local_rank>/`, as in torchrun.

    A rank's folder has `error.json` and, if requested, `stdout.log` and `stderr.log`. A further
    start with the same restart count gets `attempt_<n>.1`, `attempt_<n>.2` and so on: no folder is
    reused, and none below a given `log_dir` is ever removed.

    Without `log_dir`, error files go to a temporary folder that `close` removes. If streams are
    redirected or teed, the folder stays and its path is logged. With `os.devnull` there are no
    files: workers get no error file, redirects are ignored, and teed streams only go to the
    console.

    Nothing is created before the first `reify` or `create_run_dir`. Concurrent agents may share
    `log_dir`.

    Args:
        log_dir: base directory; created if missing.
        redirects: streams that go to a file instead of the console, for all or by local rank.
        tee: streams that go to a file and to the console.
        local_ranks_filter: the local ranks that the console shows; None or empty means all. Other
            ranks' teed streams only go to their files; their other unredirected streams are
            discarded.

    Raises:
        LogDirectoryError: `log_dir` is a file or below one, or cannot be written to.
    """

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Std | Mapping[int, Std] = Std.NONE,
        tee: Std | Mapping[int, Std] = Std.NONE,
        local_ranks_filter: set[int] | None = None,
    ) -> None:
        base = os.fspath(log_dir) if log_dir else None
        if base is not None and base != os.devnull:
            _check_log_dir(base)
        super().__init__(base, redirects, tee, local_ranks_filter)
        self._run_dir: str | None = None
        self._temporary: TemporaryFolder | None = None
        self._has_logs = False
        self._rotation: tuple[int, int] | None = None
        self._files: dict[tuple[str, int], str] = {}  # of the last start, by stream and rank

    def rotate(self, size: int, kept: int) -> bool:
        """Rotate each stream's file at `size` bytes, and keep `kept` older files.

        The launcher, not the worker, then writes these files. Returns whether any stream goes to a
        file.
        """
        self._rotation = size, kept
        return self._root_log_dir != os.devnull and (_any(self._redirects) or _any(self._tee))

    @property
    def root_log_dir(self) -> str | None:
        """`log_dir` as given, else the temporary folder once it exists; None without files."""
        if self._root_log_dir == os.devnull:
            return None
        return self._root_log_dir or self._run_dir

    @property
    def temporary_dir(self) -> str | None:
        """The folder that `close` will remove, if there is one."""
        return self._run_dir if self._temporary is not None and not self._has_logs else None

    def create_run_dir(self, run_id: str) -> str | None:
        """The folder of this launch below `log_dir`, created if it is missing.

        None without a `log_dir`.

        Raises:
            LogDirectoryError: it cannot be created.
        """
        if self._root_log_dir is None or self._root_log_dir == os.devnull:
            return None
        if self._run_dir is None:
            self._run_dir = create_log_folder(self._root_log_dir, run_id or "run")
        return self._run_dir

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Create the folders of one start and return where each stream goes.

        Reads `TORCHELASTIC_RUN_ID` and `TORCHELASTIC_RESTART_COUNT` and sets
        `TORCHELASTIC_ERROR_FILE` in `envs`.

        Raises:
            LogDirectoryError: a folder cannot be created.
        """
        if not envs:
            return LogsDest()
        self._has_logs |= any(self._to_files(envs).values())
        return self.place(envs, self._create_attempt_dir(next(iter(envs.values()))))

    def place(self, envs: dict[int, dict[str, str]], folder: str) -> LogsDest:
        """Create the folders of a start in `folder`; the result is that of `reify`.

        Each rank gets a folder `<local_rank>` with `error.json`, which is set as
        `TORCHELASTIC_ERROR_FILE`, and, if requested, `stdout.log` and `stderr.log`. An empty
        `folder` stands for no files: redirects are ignored, and teed streams only go to the
        console. Teed streams of ranks that the console does not show only go to their files; their
        other unredirected streams are discarded.

        Raises:
            LogDirectoryError: a folder cannot be created, or exists already.
        """
        dest = LogsDest()
        if folder:
            dest.filtered_stdout = os.path.join(folder, "filtered_stdout.log")
            dest.filtered_stderr = os.path.join(folder, "filtered_stderr.log")
        to_files, teed = self._to_files(envs), to_map(self._tee, max(envs, default=-1) + 1)
        for rank, env in envs.items():
            own = os.path.join(folder, str(rank)) if folder else ""
            if own:
                _create_rank_folder(own)
            is_shown = not self._local_ranks_filter or rank in self._local_ranks_filter
            for stream, name, paths, tee_paths in (
                (Std.OUT, "stdout.log", dest.stdouts, dest.tee_stdouts),
                (Std.ERR, "stderr.log", dest.stderrs, dest.tee_stderrs),
            ):
                path = os.path.join(own, name) if own and stream in to_files[rank] else ""
                paths[rank] = path if path or is_shown else os.devnull
                self._files[name.removesuffix(".log"), rank] = path
                if stream in teed[rank] and is_shown:
                    tee_paths[rank] = path or os.devnull
            error_file = os.path.join(own, "error.json") if own else ""
            dest.error_files[rank] = error_file or os.devnull
            env["TORCHELASTIC_ERROR_FILE"] = error_file
        return dest

    def open_streams(self, dest: LogsDest, nprocs: int, **options: Any) -> Streams:
        """Open the streams; without rotation, no worker has a sink."""
        if self._rotation is None and type(self).open_sink is DefaultLogsSpecs.open_sink:
            options["open_sink"] = None
        return super().open_streams(dest, nprocs, **options)

    def open_sink(self, local_rank: int, stream: str) -> Sink | None:
        """Open the file of a stream, if files rotate.

        Raises:
            LogDirectoryError: the file cannot be opened.
            StreamsError: too many descriptors are open.
        """
        path = self._files.get((stream, local_rank))
        if self._rotation is None or not path:
            return None
        from plaunch_logs_default.rotating_file import RotatingFile  # only with --log-rotate
        from plaunch_logs_default.streams.routes import open_log

        fd = open_log(path, f"{stream} of local rank {local_rank}")
        return RotatingFile(path, *self._rotation, fd=fd)

    def _to_files(self, local_ranks: Collection[int]) -> dict[int, Std]:
        """The streams of each rank that go to files: redirected or teed."""
        count = max(local_ranks, default=-1) + 1
        redirects, tee = to_map(self._redirects, count), to_map(self._tee, count)
        return {rank: redirects[rank] | tee[rank] for rank in local_ranks}

    def planned(self, run_id: str, local_rank: int) -> dict[str, str]:
        """Where the files of a rank's first start would be, without creating anything."""
        if self._root_log_dir == os.devnull:
            return {}
        if self._root_log_dir is None:
            run_dir = planned_temporary_folder(run_id)
        else:
            run_dir = os.path.join(self._root_log_dir, folder_name(run_id))
        folder = os.path.join(f"{run_dir}_<random>", "attempt_0", str(local_rank))
        files = {"error_file": os.path.join(folder, "error.json")}
        for name, stream in (("stdout", Std.OUT), ("stderr", Std.ERR)):
            if stream in self._to_files([local_rank])[local_rank]:
                files[name] = os.path.join(folder, f"{name}.log")
        return files

    def doctor_findings(self, context: DoctorContext) -> list[Finding]:
        """The findings of `--doctor` about temporary folders that were left behind."""
        from plaunch_logs_default.doctor import find_leftovers  # only for --doctor

        return find_leftovers(context)

    def close(self, succeeded: bool) -> None:
        """Remove the temporary folder, unless logs were requested; called once, after the job.

        The report of a failed job has read the error files by then.
        """
        del succeeded
        if self._temporary is not None and not self._has_logs:
            self._temporary.remove()
            self._run_dir = self._temporary = None

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(root_log_dir={self._root_log_dir}, "
            f"redirects={self._redirects}, tee={self._tee}, "
            f"local_ranks_filter={self._local_ranks_filter})"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DefaultLogsSpecs):
            return NotImplemented
        return self._settings() == other._settings()

    __hash__ = None  # type: ignore[assignment]  # equal by value, as torchrun's

    def _settings(self) -> tuple[object, ...]:
        return self._root_log_dir, self._redirects, self._tee, self._local_ranks_filter

    def _create_attempt_dir(self, env: Mapping[str, str]) -> str:
        """Create the folder of one start; empty without files."""
        if self._root_log_dir == os.devnull:
            return ""
        if self._root_log_dir is None and self._run_dir and not os.path.isdir(self._run_dir):
            # Another program has cleaned up temporary folders. Create a new one.
            if self._temporary is not None:
                self._temporary.discard()
            self._run_dir = self._temporary = None
        if self._run_dir is None:
            run_id = env.get("TORCHELASTIC_RUN_ID") or "run"
            if self.create_run_dir(run_id) is None and not self._create_temporary(run_id):
                return ""
        attempt = folder_name(env.get("TORCHELASTIC_RESTART_COUNT") or "0")
        name = path = os.path.join(self._run_dir or "", f"attempt_{attempt}")
        for k in itertools.count(1):
            try:
                os.mkdir(path)
                break
            except FileExistsError:
                path = f"{name}.{k}"
            except OSError as error:
                raise LogDirectoryError(
                    f"log folder {path!r} cannot be created: {error}"
                ) from error
        return path

    def _create_temporary(self, run_id: str) -> bool:
        """Create the folder of a launch without a log directory; False if that is impossible."""
        if self._has_logs:
            self._run_dir = create_temporary_log_folder(run_id)
            return True
        self._temporary = TemporaryFolder.create(run_id)
        if self._temporary is not None:
            self._run_dir = self._temporary.path
        return self._temporary is not None


def _any(streams: Std | Mapping[int, Std]) -> bool:
    return bool(streams) if isinstance(streams, int) else any(streams.values())


def _create_rank_folder(path: str) -> None:
    try:
        os.makedirs(path)
    except FileExistsError:
        raise LogDirectoryError(
            f"log folder {path!r} already exists; make sure that no other program writes there"
        ) from None
    except OSError as error:
        raise LogDirectoryError(f"log folder {path!r} cannot be created: {error}") from error


def _check_log_dir(log_dir: str) -> None:
    """Fail early, before workers start, if no folder can be created in `log_dir`.

    Raises:
        LogDirectoryError: `log_dir` cannot be used.
    """
    try:
        problem = "has a NUL character" if "\0" in log_dir else ""
        problem = problem or ("is too long" if len(os.fsencode(log_dir)) > _MAX_PATH else "")
    except UnicodeEncodeError:
        problem = "has characters that cannot be encoded"
    if problem:
        raise LogDirectoryError(f"log directory {log_dir!r:.60} {problem}; choose another one")
    existing = whole = absolute(log_dir)
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    if not os.path.isdir(existing):
        what = "it" if existing == whole else repr(existing)
        problem = f"{what} is {'a file' if os.path.isfile(existing) else 'not a directory'}"
    elif reason := why_not_writable(existing):
        problem = f"{existing!r} {reason}"
    if problem:
        raise LogDirectoryError(
            f"log directory {log_dir!r} cannot be used: {problem}; choose another one"
        )
