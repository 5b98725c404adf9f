"""Where the files of one launch go: torchrun's layout, in folders that are never used twice."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from plaunch.errors import LogDirectoryError
from plaunch.numbers import quote
from plaunch.process.streams.logs import LogsDest, LogsSpecs
from plaunch.process.streams.std import Std, to_map
from plaunch.process.temporary_folders import (
    PREFIX,
    create_held,
    remove_temporary,
    sweep,
    temporary_base,
)

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping

_MAX_NAME_CHARS = 120  # of a run id inside a folder name; file systems allow 255 bytes
_MAX_PATH = 3000  # bytes; the system takes 4096, of which our folders need some


class RunLayout(LogsSpecs):
    """Files below `<log_dir>/<run_id>_<random>/attempt_<n>/<local_rank>/`, as torchrun has them.

    A rank's folder holds `stdout.log` and `stderr.log`, where asked for, and `error.json`. A
    further start with the same restart count gets `attempt_<n>.1`, `attempt_<n>.2` and so on: no
    folder is used twice, and none below a given `log_dir` is ever removed.

    Without `log_dir`, error files alone go to a temporary folder that `close` removes, and that is
    all; if streams are redirected or teed, the folder stays and its place is logged. With
    `os.devnull` there are no files: workers get no error file, redirects are ignored, and teed
    streams only go to the console.

    Nothing is created before the first `reify`, or `create_run_dir`. Concurrent agents may share
    `log_dir`.

    Args:
        log_dir: base directory; created if missing.
        redirects: streams that go to a file instead of the console, for all or by local rank.
        tee: streams that go to a file and to the console.
        local_ranks_filter: the local ranks that are shown on the console; None or empty means
            all. Other ranks' teed streams only go to their files, their unredirected ones nowhere.

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
            _check_base(base)
        super().__init__(base, redirects, tee, local_ranks_filter)
        self._run_dir: str | None = None
        self._temporary = False
        self._hold_fd = -1  # the lock of the temporary folder
        self._has_logs = False

    @property
    def root_log_dir(self) -> str | None:
        """`log_dir` as given; else the temporary folder once there is one; None if no files."""
        if self._root_log_dir == os.devnull:
            return None
        return self._root_log_dir or self._run_dir

    @property
    def temporary_dir(self) -> str | None:
        """The folder that `close` will remove, if there is one; for whoever outlives a launcher."""
        return self._run_dir if self._temporary and not self._has_logs else None

    def create_run_dir(self, run_id: str) -> str | None:
        """The folder of this launch below `log_dir`, created if it is missing.

        None without a `log_dir`.

        Raises:
            LogDirectoryError: it cannot be created.
        """
        if self._root_log_dir is None or self._root_log_dir == os.devnull:
            return None
        if self._run_dir is None:
            self._run_dir = _create_run_dir(self._root_log_dir, run_id or "run", 0o777)
        return self._run_dir

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Create the folders of one start and say where each stream goes.

        Reads `TORCHELASTIC_RUN_ID` and `TORCHELASTIC_RESTART_COUNT` and sets
        `TORCHELASTIC_ERROR_FILE` in `envs`.

        Raises:
            LogDirectoryError: a folder cannot be created.
        """
        dest = LogsDest()
        if not envs:
            return dest
        redirects = to_map(self._redirects, max(envs) + 1)
        tee = to_map(self._tee, max(envs) + 1)
        self._has_logs |= any(redirects[rank] | tee[rank] for rank in envs)
        attempt_dir = self._create_attempt_dir(next(iter(envs.values())))
        if attempt_dir:
            dest.filtered_stdout = os.path.join(attempt_dir, "filtered_stdout.log")
            dest.filtered_stderr = os.path.join(attempt_dir, "filtered_stderr.log")
        for rank, env in envs.items():
            rank_dir = os.path.join(attempt_dir, str(rank)) if attempt_dir else ""
            if rank_dir:
                _mkdir(rank_dir)
            self._place_stream(
                rank,
                os.path.join(rank_dir, "stdout.log") if rank_dir else "",
                Std.OUT in redirects[rank],
                Std.OUT in tee[rank],
                dest.stdouts,
                dest.tee_stdouts,
            )
            self._place_stream(
                rank,
                os.path.join(rank_dir, "stderr.log") if rank_dir else "",
                Std.ERR in redirects[rank],
                Std.ERR in tee[rank],
                dest.stderrs,
                dest.tee_stderrs,
            )
            error_file = os.path.join(rank_dir, "error.json") if rank_dir else ""
            dest.error_files[rank] = error_file or os.devnull
            env["TORCHELASTIC_ERROR_FILE"] = error_file
        return dest

    def planned(self, run_id: str, local_rank: int) -> dict[str, str]:
        """Where the files of a rank's first start would be, without creating anything.

        The keys are `stdout`, `stderr` and `error_file`; what goes to the console alone has none.
        """
        if self._root_log_dir == os.devnull:
            return {}
        base = self._root_log_dir or os.path.join(temporary_base(), PREFIX)
        separator = os.sep if self._root_log_dir else ""
        folder = os.path.join(
            f"{base}{separator}{_folder_name(run_id)}_<random>", "attempt_0", str(local_rank)
        )
        redirects = to_map(self._redirects, local_rank + 1)[local_rank]
        to_file = redirects | to_map(self._tee, local_rank + 1)[local_rank]
        files = {"error_file": os.path.join(folder, "error.json")}
        for name, stream in (("stdout", Std.OUT), ("stderr", Std.ERR)):
            if stream in to_file:
                files[name] = os.path.join(folder, f"{name}.log")
        return files

    def close(self, succeeded: bool) -> None:
        """Remove the temporary folder, unless logs were asked for; called once, after the job.

        A failed job's error files have been read into its report by then.
        """
        del succeeded
        folder = self.temporary_dir
        if folder is None:
            return
        self._run_dir = None
        try:
            remove_temporary(folder)
        except FileNotFoundError:
            pass  # somebody has cleaned up before
        except OSError as error:
            _logger().warning("temporary folder %r cannot be removed: %s", folder, error)
        self._let_go()
        sweep(os.path.dirname(folder))  # here, where nobody waits for workers

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(root_log_dir={self._root_log_dir}, "
            f"redirects={self._redirects}, tee={self._tee}, "
            f"local_ranks_filter={self._local_ranks_filter})"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RunLayout):
            return NotImplemented
        return (
            self._root_log_dir == other._root_log_dir
            and self._redirects == other._redirects
            and self._tee == other._tee
            and self._local_ranks_filter == other._local_ranks_filter
        )

    __hash__ = None  # type: ignore[assignment]  # equal by value, as torchrun's

    def _place_stream(
        self,
        rank: int,
        path: str,
        redirected: bool,
        teed: bool,
        paths: dict[int, str],
        tee_paths: dict[int, str],
    ) -> None:
        """Decide one stream of one rank; `path` is its file, empty if there are no files."""
        paths[rank] = path if redirected or teed else ""
        shown = not self._local_ranks_filter or rank in self._local_ranks_filter
        if teed and shown:
            tee_paths[rank] = path or os.devnull
        if not shown and not paths[rank]:
            paths[rank] = os.devnull

    def _create_attempt_dir(self, env: Mapping[str, str]) -> str:
        """Create the folder of one start; empty if there are to be no files."""
        if self._root_log_dir == os.devnull:
            return ""
        if self._temporary and not os.path.isdir(self._run_dir or ""):
            # Somebody cleans temporary folders; nobody has asked for this one, so none is missed.
            self._let_go()
            self._run_dir = None
        if self._run_dir is None:
            run_id = env.get("TORCHELASTIC_RUN_ID") or "run"
            self._run_dir = self.create_run_dir(run_id) or self._create_temporary_dir(run_id)
            if not self._run_dir:
                return ""
        attempt = _folder_name(env.get("TORCHELASTIC_RESTART_COUNT") or "0")
        name = os.path.join(self._run_dir, f"attempt_{attempt}")
        path, k = name, 0
        while not _try_mkdir(path, 0o777):
            k += 1
            path = f"{name}.{k}"
        return path

    def _let_go(self) -> None:
        """Give the lock of the temporary folder back."""
        if self._hold_fd >= 0:
            os.close(self._hold_fd)
            self._hold_fd = -1

    def _create_temporary_dir(self, run_id: str) -> str:
        try:
            base = temporary_base()
            if self._has_logs:
                folder = _create_run_dir(base, PREFIX + run_id, 0o700)
            else:
                folder, self._hold_fd = create_held(
                    lambda boot: _create_run_dir(base, PREFIX + run_id, 0o700, boot)
                )
        except LogDirectoryError as error:
            if self._has_logs:
                raise
            # A read-only container can still train: only its error files are missed.
            _logger().warning("workers get no error files: %s", error)
            return ""
        self._temporary = True
        if self._has_logs:
            _logger().warning("no log directory was given; logs go to %s", folder)
        return folder


def _check_base(base: str) -> None:
    """Raise LogDirectoryError now if `base` is of no use, rather than when workers start."""
    try:
        problem = "has a NUL character" if "\0" in base else ""
        problem = problem or ("is too long" if len(os.fsencode(base)) > _MAX_PATH else "")
    except UnicodeEncodeError:
        problem = "has characters that cannot be encoded"
    if problem:
        raise LogDirectoryError(f"log directory {quote(base)} {problem}; name another one")
    existing = _absolute(base)
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    if not os.path.isdir(existing):
        what = "it is a file" if os.path.isfile(existing) else "it is not a directory"
        if existing != _absolute(base):
            what = what.replace("it is", f"{existing!r} is")
        raise LogDirectoryError(f"log directory {base!r} cannot be used: {what}; name another one")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise LogDirectoryError(
            f"log directory {base!r} cannot be used: {existing!r} is not writable for this user; "
            "name another one"
        )


def _absolute(base: str) -> str:
    try:
        return os.path.abspath(base)
    except FileNotFoundError:  # there is no current folder
        from plaunch.folders import absolute  # noqa: PLC0415 - errors only

        return absolute(base, "log directory")


def _create_run_dir(base: str, run_id: str, mode: int, middle: str = "") -> str:
    """Create a folder that no other launch has, and return its absolute path."""
    base = _absolute(base)
    try:
        os.makedirs(base, exist_ok=True)
    except OSError as error:
        raise LogDirectoryError(f"log directory {base!r} cannot be created: {error}") from error
    prefix = os.path.join(base, _folder_name(run_id))
    while True:
        path = f"{prefix}_{middle}{'-' if middle else ''}{os.urandom(4).hex()}"
        if _try_mkdir(path, mode):
            return path


def _try_mkdir(path: str, mode: int) -> bool:
    """Create `path`; False if it exists already."""
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        return False
    except OSError as error:
        raise LogDirectoryError(f"log folder {path!r} cannot be created: {error}") from error
    return True


def _mkdir(path: str) -> None:
    if not _try_mkdir(path, 0o777):
        raise LogDirectoryError(f"log folder {path!r} exists already; nothing else may write there")


def _folder_name(text: str) -> str:
    """`text` as one component of a path: no separators, no spaces, not hidden, not too long."""
    name = "".join(
        char if char.isascii() and (char.isalnum() or char in "-_.+=@") else "_"
        for char in text[:_MAX_NAME_CHARS]
    )
    return "_" + name[1:] if name.startswith(".") else name


def _logger() -> logging.Logger:
    import logging  # noqa: PLC0415 - rare paths only

    return logging.getLogger("plaunch")
