"""The health check `disk`: folders of the launcher and workers are writable and have space."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

from plaunch.doctor import Finding, Status
from plaunch.numbers import format_bytes

from plaunch_doctor.disks import nearest_existing
from plaunch_doctor.machine import Machine
from plaunch_doctor.sizes import MIB, read_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch.health import HealthOccasion
    from plaunch.plugin import PluginContext

FLOOR = 100 * MIB  # bytes that must be free
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - workers share memory there
_WHAT = "disk"


class DiskCheck:
    """Checks the free space of each folder, writes a file to it, and removes the file.

    Args:
        context: the launch; the argument is the size that must be free.
    """

    takes_argument = True

    def __init__(self, context: PluginContext) -> None:
        argument = context.options.get("argument")
        self._floor = FLOOR if argument is None else read_size(argument, _WHAT)
        self._log_dir = context.log_dir
        self._machine = Machine()

    def check(self, occasion: HealthOccasion) -> Iterator[Finding]:
        """Check the log folder, the folder for temporary files, and shared memory."""
        del occasion
        folders = {tempfile.gettempdir(): "the TMPDIR of this node"}
        if self._log_dir is not None:
            folders[nearest_existing(self._log_dir)] = "--log-dir"
        for folder, where in folders.items():
            yield self._check_folder(folder, self._floor, f"make room there, or change {where}")
        if os.path.isdir(_SHARED_MEMORY):
            advice = "remove files that dead workers left there, or make it larger"
            tenth = self._machine.space(_SHARED_MEMORY).total // 10
            yield self._check_folder(_SHARED_MEMORY, min(self._floor, tenth), advice)

    def _check_folder(self, folder: str, floor: int, advice: str) -> Finding:
        try:
            free = self._machine.space(folder).free
            if free < floor:
                said = f"{folder} has {format_bytes(free)} free, less than {format_bytes(floor)}"
                return Finding(Status.PROBLEM, _WHAT, said, advice)
            self._machine.write_sample(folder)
        except OSError as error:
            said = f"{folder} cannot be written to: {error.strerror or error}"
            return Finding(Status.PROBLEM, _WHAT, said, advice)
        return Finding(Status.OK, _WHAT, f"{folder} has {format_bytes(free)} free")
