"""Facts about this machine: limits, disks, programs, time, packages; and sizes in bytes."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import shutil
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plaunch.errors import UsageError
from plaunch.numbers import quote

if TYPE_CHECKING:
    from collections.abc import Mapping

MIB = 1 << 20
GIB = 1 << 30
_UNITS = {"": 1, "k": 1 << 10, "m": MIB, "g": GIB, "t": 1 << 40}
_MOST = 1 << 60
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,3})?)([kmgt]?)(?:i?b)?", re.IGNORECASE | re.ASCII)

UNLIMITED = resource.RLIM_INFINITY
_TIMEX_BYTES = 512  # the kernel's structure has about 200
_STATUS_OFFSET = 5 * ctypes.sizeof(
    ctypes.c_long
)  # modes (padded), offset, freq, maxerror, esterror
_UNSYNCHRONISED = 0x40  # STA_UNSYNC
_SAMPLE = b"plaunch checks that this folder is writable\n" * 100


@dataclass(frozen=True)
class Space:
    """The space of a file system, in bytes.

    Args:
        total: its size.
        free: what is free for this user.
        files: free inodes; -1 if the file system does not count them.
    """

    total: int
    free: int
    files: int = -1


class Machine:
    """The machine as this process sees it. Tests replace it with a fake."""

    @property
    def python(self) -> str:
        """The interpreter of this process (`sys.executable`)."""
        return sys.executable

    @property
    def prefix(self) -> str:
        """The environment of that interpreter."""
        return sys.prefix

    @property
    def base_prefix(self) -> str:
        """The installation that the environment was created from."""
        return sys.base_prefix

    @property
    def version(self) -> tuple[int, int, int]:
        """The version of Python."""
        return sys.version_info[:3]

    @property
    def user(self) -> int:
        """The effective user id; 0 is root."""
        return os.geteuid()

    def limit(self, name: str) -> tuple[int, int]:
        """Return the soft and hard value of a limit such as `RLIMIT_NOFILE`."""
        return resource.getrlimit(getattr(resource, name))

    def processors(self) -> int:
        """Return the number of processors in the affinity mask."""
        return len(os.sched_getaffinity(0))

    def space(self, path: str) -> Space:
        """Return the space of the file system that contains `path`.

        Raises:
            OSError: `path` does not exist.
        """
        found = os.statvfs(path)
        files = found.f_favail if found.f_files else -1
        return Space(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, files)

    def write_sample(self, folder: str) -> None:
        """Write a file to `folder`, and remove it.

        Raises:
            OSError: the folder is not writable, or is full.
        """
        import tempfile  # slow; only checks need it

        with tempfile.NamedTemporaryFile(prefix=".plaunch-", dir=folder) as file:
            file.write(_SAMPLE)
            file.flush()
            os.fsync(file.fileno())

    def is_writable(self, folder: str) -> bool:
        """Whether a file can be written to `folder`. Writes one."""
        try:
            self.write_sample(folder)
        except OSError:
            return False
        return True

    def which(self, program: str, environ: Mapping[str, str]) -> str:
        """Return the path of `program` as found on PATH; empty if not found."""
        return shutil.which(program, path=environ.get("PATH", os.defpath)) or ""

    def now(self) -> float:
        """Return the time of day, in seconds since 1970."""
        return time.time()

    def is_synchronised(self) -> bool | None:
        """Whether the kernel considers its clock synchronised; None if unknown."""
        try:
            adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
        except (AttributeError, OSError):
            return None
        buffer = ctypes.create_string_buffer(_TIMEX_BYTES)  # modes is 0: nothing is changed
        if adjtimex(buffer) < 0:
            return None
        return not ctypes.c_int.from_buffer(buffer, _STATUS_OFFSET).value & _UNSYNCHRONISED

    def distribution(self, name: str) -> tuple[str, str] | None:
        """Return the version and the folder of an installed distribution, or None."""
        from importlib import metadata  # slow; only checks need it

        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            return None
        return found.version, str(found.locate_file(""))


def read_size(text: str, check: str) -> int:
    """Return the bytes of a size such as 100M, 8G or 1.5GiB. All units are powers of 1024.

    Raises:
        UsageError: `text` is not a size. The message names the `check` whose argument it is.
    """
    found = _SIZE.fullmatch(text)
    size = 0 if found is None else int(float(found[1]) * _UNITS[found[2].lower()])
    if not 0 < size <= _MOST:
        raise UsageError(
            f"the health check {check!r} cannot use {quote(text)} (--health-check={check}:SIZE); "
            "write a size such as 500M, 8G or 1.5T"
        )
    return size
