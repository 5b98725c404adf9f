"""Folders for log files and error files: never used twice, and some of them temporary.

A temporary folder of error files is removed at the end of its job, or swept if its launcher was
killed. A launcher holds a lock on its folder, which the kernel takes away when the launcher ends in
any way. So a folder that nobody has locked is nobody's, or is just being made; who makes it looks
once more after locking it. A lock means something on this system only, so that the name of the
folder says when this system was started.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

from plaunch.errors import LogDirectoryError
from plaunch.process import remove_temporary

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterator

PREFIX = "plaunch_"  # without it, nobody removes a folder
BOOT_ID = "/proc/sys/kernel/random/boot_id"
_MAX_NAME_CHARS = 120  # of a run id inside a folder name; file systems allow 255 bytes
_DIGITS = 8  # of the name of this start of the system, and of the random end
_MOST = 16  # folders that one launch sweeps
_ERROR_FILE = "error.json"


class TemporaryFolder:
    """A folder for error files alone, in a launch that was given no log directory.

    They are nothing to keep: `remove` removes them, and if this process is killed before, the guard
    or a later launch does.

    Args:
        path: the folder; its name begins with `plaunch_`.
        lock_fd: the descriptor that holds it; -1 without one.
    """

    def __init__(self, path: str, lock_fd: int) -> None:
        self.path = path
        self._lock_fd = lock_fd

    @classmethod
    def create(cls, name: str) -> TemporaryFolder | None:
        """Create one with `name` in its own name.

        If there is no place for it, return None and warn: a read-only container can still train.
        """
        try:
            base, stem = temporary_base(), folder_name(PREFIX + name)

            def make(boot: str) -> str:
                return _create(base, f"{stem}_{boot}-" if boot else f"{stem}_", 0o700)

            return cls(*create_held(make))
        except LogDirectoryError as error:
            _logger().warning("workers get no error files: %s", error)
            return None

    def remove(self) -> None:
        """Remove it, and those of launchers that were killed."""
        self.discard()
        sweep(os.path.dirname(self.path))

    def discard(self) -> None:
        """Remove only it, because a caller may be waiting for workers."""
        try:
            remove_temporary(self.path)
        except FileNotFoundError:
            pass  # somebody has cleaned up before
        except OSError as error:
            _logger().warning("temporary folder %r cannot be removed: %s", self.path, error)
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


def create_log_folder(parent: str, name: str) -> str:
    """Create the unique folder `<parent>/<name>_<random>`, and missing parents.

    Returns its absolute path.

    Raises:
        LogDirectoryError: it cannot be created.
    """
    return _create(parent, f"{folder_name(name)}_", 0o777)


def create_temporary_log_folder(name: str) -> str:
    """Create a folder for logs that were asked for without a log directory; it stays.

    Raises:
        LogDirectoryError: there is no place for it.
    """
    path = _create(temporary_base(), f"{folder_name(PREFIX + name)}_", 0o700)
    _logger().warning("no log directory was given; logs are written to %s", path)
    return path


def planned_temporary_folder(name: str) -> str:
    """The beginning of the path that a temporary folder of this name would have.

    Raises:
        LogDirectoryError: there is no place for it.
    """
    return os.path.join(temporary_base(), folder_name(PREFIX + name))


def _create(parent: str, beginning: str, mode: int) -> str:
    parent = absolute(parent)
    try:
        os.makedirs(parent, exist_ok=True)
    except (OSError, ValueError) as error:  # what no path may contain is a ValueError
        raise LogDirectoryError(f"log directory {parent!r} cannot be created: {error}") from error
    while True:
        path = os.path.join(parent, f"{beginning}{os.urandom(4).hex()}")
        try:
            os.mkdir(path, mode)
        except FileExistsError:
            continue
        except OSError as error:
            raise LogDirectoryError(f"log folder {path!r} cannot be created: {error}") from error
        return path


def absolute(log_dir: str) -> str:
    """The path of a log directory from the root on.

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
    """The directory for temporary folders, found as the standard library's tempfile does.

    Raises:
        LogDirectoryError: there is none that can be written to.
    """
    candidates = [os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")]
    for candidate in (*candidates, "/tmp", "/var/tmp", "/usr/tmp"):  # noqa: S108
        if candidate and os.path.isdir(candidate) and os.access(candidate, os.W_OK | os.X_OK):
            return candidate
    raise LogDirectoryError(
        "no directory for temporary files is writable; set TMPDIR, or give a log directory"
    )


def create_held(make: Callable[[str], str]) -> tuple[str, int]:
    """Create a folder that a later launch removes if this process is killed.

    Args:
        make: creates a folder whose name has this part in it, and a random end.

    Returns:
        Its path, and the descriptor that holds it; -1 where folders cannot be locked. In that
        case no launcher sweeps the folder.
    """
    boot = read_boot()
    while len(boot) == _DIGITS:
        path = make(boot)
        try:
            fd = _lock(path)
        except (FileNotFoundError, BlockingIOError):
            continue  # somebody who sweeps has it, or has removed it
        except OSError:
            with contextlib.suppress(OSError):
                os.rmdir(path)
            break
        if os.path.exists(path):
            return path, fd
        os.close(fd)
    return make(""), -1


def read_boot(path: str = BOOT_ID) -> str:
    """A text for names that identifies this boot of the system; empty if it is unknown."""
    try:
        with open(path, encoding="ascii") as file:
            return file.read(_DIGITS)
    except (OSError, ValueError):
        return ""


def find_stale_folders(base: str, boot_id: str = BOOT_ID) -> list[str]:
    """The temporary folders in `base` of launchers of this user that are gone, and left them.

    `boot_id` is the file in which the system says which start of it this is.
    """
    stale = []
    for path in _candidates(base, read_boot(boot_id)):
        with contextlib.suppress(OSError):
            os.close(_lock(path))
            stale.append(path)
    return stale


def sweep(base: str) -> None:
    """Remove what `find_stale_folders` finds if there are error files in it and nothing else.

    It leaves what it cannot remove, because that does not concern this launch.
    """
    swept = 0
    for path in _candidates(base, read_boot()):
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
        if swept == _MOST:
            return


def _candidates(base: str, boot: str) -> Iterator[str]:
    if len(boot) != _DIGITS:
        return
    try:
        names = os.listdir(base)
    except OSError:
        return
    mark = f"_{boot}-"
    for name in names:
        if name.startswith(PREFIX) and name[:-_DIGITS].endswith(mark):
            path = os.path.join(base, name)
            with contextlib.suppress(OSError):
                if os.lstat(path).st_uid == os.geteuid():
                    yield path


def _lock(path: str) -> int:
    """Take the lock of a folder; its descriptor.

    Raises:
        BlockingIOError: somebody holds it.
        OSError: it is gone, no folder, or cannot be locked.
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


def _logger() -> logging.Logger:
    import logging  # rare paths only

    return logging.getLogger("plaunch")
