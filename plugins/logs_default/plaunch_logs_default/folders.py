"""Folders for log files and error files: never reused, and some of them temporary.

A temporary folder of error files is removed at the end of its job. If its launcher was killed, a
later launch sweeps it. A launcher locks its folder, and the kernel releases the lock when the
launcher ends in any way. So an unlocked folder is stale, or was created just now: its creator
checks after locking that it still exists. A lock is visible on this system only, so the folder's
name contains an id of this boot.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from typing import TYPE_CHECKING

from plaunch.errors import LogDirectoryError
from plaunch.process import remove_temporary, why_not_writable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = logging.getLogger("plaunch")

PREFIX = "plaunch_"  # only folders with this prefix are ever removed
BOOT_ID = "/proc/sys/kernel/random/boot_id"
_MAX_NAME_CHARS = 120  # of a run id inside a folder name; file systems allow 255 bytes
_ID_CHARS = 8  # of the boot id, and of the random suffix
_MAX_SWEPT = 16  # folders that one launch removes
_ERROR_FILE = "error.json"


class TemporaryFolder:
    """A folder for error files only, for a launch without a log directory.

    `remove` removes it; if this process is killed before, the guard or a later launch does.

    Args:
        path: the folder; its name begins with `plaunch_`.
        lock_fd: the descriptor that holds the lock; -1 without one.
    """

    def __init__(self, path: str, lock_fd: int) -> None:
        self.path = path
        self._lock_fd = lock_fd

    @classmethod
    def create(cls, name: str) -> TemporaryFolder | None:
        """Create a folder whose name contains `name`.

        Returns None, and logs a warning, if no temporary directory is writable: a job can train in
        a read-only container too.
        """
        try:
            base, stem = temporary_base(), folder_name(PREFIX + name)

            def create(boot_id: str) -> str:
                return _create(base, f"{stem}_{boot_id}-" if boot_id else f"{stem}_", 0o700)

            return cls(*create_locked(create))
        except LogDirectoryError as error:
            logger.warning("workers get no error files: %s", error)
            return None

    def remove(self) -> None:
        """Remove this folder, and those of launchers that were killed."""
        self.discard()
        sweep(os.path.dirname(self.path))

    def discard(self) -> None:
        """Remove only this folder; takes less time than `remove`."""
        try:
            remove_temporary(self.path)
        except FileNotFoundError:
            pass  # another program has cleaned up
        except OSError as error:
            logger.warning("temporary folder %r cannot be removed: %s", self.path, error)
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


def create_log_folder(parent: str, name: str) -> str:
    """Create the unique folder `<parent>/<name>_<random>` with missing parents; its absolute path.

    Raises:
        LogDirectoryError: it cannot be created.
    """
    return _create(parent, f"{folder_name(name)}_", 0o777)


def create_temporary_log_folder(name: str) -> str:
    """Create a permanent folder for logs that were requested without a log directory.

    Raises:
        LogDirectoryError: no temporary directory is writable.
    """
    path = _create(temporary_base(), f"{folder_name(PREFIX + name)}_", 0o700)
    logger.warning("no log directory was given; logs are written to %s", path)
    return path


def planned_temporary_folder(name: str) -> str:
    """The beginning of the path that a temporary folder of this name would have.

    Raises:
        LogDirectoryError: no temporary directory is writable.
    """
    return os.path.join(temporary_base(), folder_name(PREFIX + name))


def _create(parent: str, beginning: str, mode: int) -> str:
    parent = absolute(parent)
    host = os.uname().nodename
    try:
        missing = _first_missing(parent)
        os.makedirs(parent, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError for characters that no path may contain
        raise LogDirectoryError(
            f"log directory {parent!r} cannot be created on {host}: {error}; if other nodes have "
            "it, its file system is not mounted here"
        ) from error
    if missing not in ("", parent):
        logger.info(
            "%r did not exist on %s and was created for the log directory %r; if other nodes have "
            "it, its file system is not mounted here",
            missing,
            host,
            parent,
        )
    while True:
        path = os.path.join(parent, f"{beginning}{os.urandom(4).hex()}")
        try:
            os.mkdir(path, mode)
        except FileExistsError:
            continue
        except OSError as error:
            raise LogDirectoryError(f"log folder {path!r} cannot be created: {error}") from error
        return path


def _first_missing(folder: str) -> str:
    """Return the uppermost folder of a path that does not exist; empty if all exist."""
    missing = ""
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        missing, folder = folder, os.path.dirname(folder)
    return missing


def absolute(log_dir: str) -> str:
    """The absolute path of a log directory.

    Raises:
        LogDirectoryError: it is relative to a current folder that does not exist any more.
    """
    try:
        return os.path.abspath(log_dir)
    except FileNotFoundError:
        raise LogDirectoryError(
            f"log directory {log_dir!r} is relative to the current folder, which does not exist "
            "any more; change to another folder, or give a path that begins with /"
        ) from None


def folder_name(text: str) -> str:
    """`text` as one component of a path: no separators, no spaces, not hidden, not too long."""
    name = "".join(
        char if char.isascii() and (char.isalnum() or char in "-_.+=@") else "_"
        for char in text[:_MAX_NAME_CHARS]
    )
    return "_" + name[1:] if name.startswith(".") else name


def temporary_base() -> str:
    """The directory for temporary folders, chosen as the standard library's tempfile does.

    Raises:
        LogDirectoryError: no candidate is writable.
    """
    candidates = [os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")]
    for candidate in (*candidates, "/tmp", "/var/tmp", "/usr/tmp"):  # noqa: S108
        if candidate and os.path.isdir(candidate) and not why_not_writable(candidate):
            return candidate
    raise LogDirectoryError(
        "no directory for temporary files is writable; set TMPDIR, or give a log directory"
    )


def create_locked(create: Callable[[str], str]) -> tuple[str, int]:
    """Create a folder that a later launch removes if this process is killed.

    Args:
        create: creates a folder whose name contains the given boot id and a random suffix.

    Returns:
        Its path, and the descriptor that holds the lock; -1 where folders cannot be locked. In
        that case no launcher sweeps the folder.
    """
    boot_id = read_boot_id()
    while len(boot_id) == _ID_CHARS:
        path = create(boot_id)
        try:
            fd = _lock(path)
        except (FileNotFoundError, BlockingIOError):
            continue  # another launcher, in its sweep, has locked or removed it
        except OSError:
            with contextlib.suppress(OSError):
                os.rmdir(path)
            break
        if os.path.exists(path):
            return path, fd
        os.close(fd)
    return create(""), -1


def read_boot_id(path: str = BOOT_ID) -> str:
    """The first characters of this boot's id; empty if it is unknown."""
    try:
        with open(path, encoding="ascii") as file:
            return file.read(_ID_CHARS)
    except (OSError, ValueError):
        return ""


def find_stale_folders(base: str, boot_id_file: str = BOOT_ID) -> list[str]:
    """The temporary folders in `base` that this user's launchers left behind when killed."""
    stale = []
    for path in _candidates(base, read_boot_id(boot_id_file)):
        with contextlib.suppress(OSError):
            os.close(_lock(path))
            stale.append(path)
    return stale


def sweep(base: str) -> None:
    """Remove stale folders that contain nothing but error files.

    Errors are ignored: they do not concern this launch.
    """
    swept = 0
    for path in _candidates(base, read_boot_id()):
        try:
            fd = _lock(path)
        except OSError:
            continue
        try:
            if _has_error_files_only(path):
                swept += 1
                with contextlib.suppress(OSError):
                    remove_temporary(path)
        finally:
            os.close(fd)
        if swept == _MAX_SWEPT:
            return


def _candidates(base: str, boot_id: str) -> Iterator[str]:
    if len(boot_id) != _ID_CHARS:
        return
    try:
        names = os.listdir(base)
    except OSError:
        return
    for name in names:
        if name.startswith(PREFIX) and name[:-_ID_CHARS].endswith(f"_{boot_id}-"):
            path = os.path.join(base, name)
            with contextlib.suppress(OSError):
                if os.lstat(path).st_uid == os.geteuid():
                    yield path


def _lock(path: str) -> int:
    """Lock a folder; the descriptor that holds the lock.

    Raises:
        BlockingIOError: another process holds it.
        OSError: the path is gone or not a folder, or cannot be locked.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _has_error_files_only(folder: str) -> bool:
    return all(_ERROR_FILE in name for _, _, files in os.walk(folder) for name in files)
