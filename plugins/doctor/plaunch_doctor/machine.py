"""Questions about this machine that are no files: limits, disks, programs, time, packages."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

UNLIMITED = resource.RLIM_INFINITY
_TIMEX_BYTES = 512  # the kernel's structure has about 200
_STATUS_OFFSET = 5 * ctypes.sizeof(
    ctypes.c_long
)  # modes (padded), offset, freq, maxerror, esterror
_UNSYNCHRONISED = 0x40  # STA_UNSYNC
_SAMPLE = b"plaunch looks whether this folder takes files\n" * 100


@dataclass(frozen=True)
class Space:
    """The space of a file system in bytes, and the files that it still takes.

    Args:
        total: its size.
        free: what this user can still write.
        files: how many files it still takes; -1 where it does not count them.
    """

    total: int
    free: int
    files: int = -1


class Machine:
    """The machine as this process sees it; tests put another one in its place."""

    @property
    def python(self) -> str:
        """The interpreter of this process."""
        return sys.executable

    @property
    def prefix(self) -> str:
        """The environment of that interpreter."""
        return sys.prefix

    @property
    def base_prefix(self) -> str:
        """The installation that the environment was made from."""
        return sys.base_prefix

    @property
    def version(self) -> tuple[int, int, int]:
        """The version of Python."""
        return sys.version_info[:3]

    @property
    def user(self) -> int:
        """The effective user; 0 is root."""
        return os.geteuid()

    def limit(self, name: str) -> tuple[int, int]:
        """The soft and the hard value of a limit such as `RLIMIT_NOFILE`."""
        return resource.getrlimit(getattr(resource, name))

    def processors(self) -> int:
        """How many processors the affinity mask leaves."""
        if hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1

    def space(self, path: str) -> Space:
        """The file system that `path` is in.

        Raises:
            OSError: there is no such path.
        """
        found = os.statvfs(path)
        files = found.f_favail if found.f_files else -1
        return Space(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, files)

    def write_sample(self, folder: str) -> None:
        """Write a file to `folder`, and remove it.

        Raises:
            OSError: the folder does not take it.
        """
        import tempfile  # not for ordinary launches

        with tempfile.NamedTemporaryFile(prefix=".plaunch-", dir=folder) as file:
            file.write(_SAMPLE)
            file.flush()
            os.fsync(file.fileno())

    def is_writable(self, folder: str) -> bool:
        """Whether this user can write files to `folder`, found by writing one."""
        try:
            self.write_sample(folder)
        except OSError:
            return False
        return True

    def which(self, program: str, environ: Mapping[str, str]) -> str:
        """The file that a shell would run for `program`; empty if there is none."""
        return shutil.which(program, path=environ.get("PATH", os.defpath)) or ""

    def now(self) -> float:
        """The time of day, in seconds since 1970."""
        return time.time()

    def is_synchronised(self) -> bool | None:
        """Whether the kernel considers its clock synchronised; None if it does not say."""
        try:
            ask = ctypes.CDLL(None, use_errno=True).adjtimex
        except (AttributeError, OSError):
            return None
        buffer = ctypes.create_string_buffer(_TIMEX_BYTES)  # modes is 0: nothing is changed
        if ask(buffer) < 0:
            return None
        return not ctypes.c_int.from_buffer(buffer, _STATUS_OFFSET).value & _UNSYNCHRONISED

    def distribution(self, name: str) -> tuple[str, str] | None:
        """The version of an installed distribution and the folder that it is in, or None."""
        from importlib import metadata  # not for ordinary launches

        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            return None
        return found.version, str(found.locate_file(""))
