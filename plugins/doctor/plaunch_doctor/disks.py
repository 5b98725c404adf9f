"""Folders that are written to: the doctor's checks, and the health check `disk`."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

from plaunch.doctor import Finding, Status
from plaunch.numbers import format_bytes

from plaunch_doctor.machine import GIB, MIB, Machine, read_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch.health import HealthOccasion
    from plaunch.plugin import PluginContext

    from plaunch_doctor.context import NodeContext

_FEW_FILES = 1000
# A socket's path has at most 107 characters; Python's multiprocessing adds about 30 to the folder.
_LONG = 75
FLOOR = 100 * MIB  # bytes that must be free
_WHAT = "disk"


def check_log_folder(context: NodeContext) -> Iterator[Finding]:
    """Check that log files can be written to `--log-dir`."""
    folder = context.options.get("log_dir")
    if not isinstance(folder, str) or not folder:
        return
    there = nearest_existing(folder)
    if not os.path.isdir(there):
        yield Finding(Status.PROBLEM, "log folder", f"{there} is a file", "give another --log-dir")
        return
    yield _check_folder(context, "log folder", there, GIB, f"for {folder}")


def check_temporary_folder(context: NodeContext) -> Iterator[Finding]:
    """Check that there is space for temporary files, such as error files and sockets."""
    what = "temporary files"
    given = next(
        (context.environ[name] for name in ("TMPDIR", "TEMP", "TMP") if context.environ.get(name)),
        "",
    )
    if given and not os.path.isdir(given):
        yield Finding(
            Status.WARNING,
            what,
            f"TMPDIR is {given!r}, which is not a folder here",
            "create it, or unset the variable: Python uses /tmp instead, other programs do not",
        )
    folder = given if given and os.path.isdir(given) else context.path("/tmp")  # noqa: S108
    if len(folder) > _LONG:
        yield Finding(
            Status.WARNING,
            what,
            f"the folder's path has {len(folder)} characters: {folder}",
            "give a shorter TMPDIR: paths of sockets in it would be too long for the system",
        )
    yield _check_folder(context, what, folder, 256 * MIB, "")


def nearest_existing(folder: str) -> str:
    """Return the folder or its nearest existing parent. Missing folders are created later."""
    there = os.path.abspath(folder)
    while not os.path.exists(there) and there != os.path.dirname(there):
        there = os.path.dirname(there)
    return there


def _check_folder(
    context: NodeContext, what: str, folder: str, wanted: int, purpose: str
) -> Finding:
    try:
        space = context.machine.space(folder)
    except OSError as error:
        return Finding(
            Status.PROBLEM, what, f"{folder}: {error.strerror}", "make it, or give another folder"
        )
    text = f"{folder} has {format_bytes(space.free)} free of {format_bytes(space.total)}"
    if purpose:
        text += f" ({purpose})"
    if space.free == 0 or space.files == 0:
        return Finding(
            Status.PROBLEM,
            what,
            f"{folder} is full: {'no more files' if space.free else 'no space'} {purpose}".strip(),
            "make room, or give another folder",
        )
    if not context.machine.is_writable(folder):
        return Finding(
            Status.PROBLEM,
            what,
            f"{folder} cannot be written to {purpose}".strip(),
            "give another folder, or change its permissions",
        )
    if space.free < wanted or 0 <= space.files < _FEW_FILES:
        return Finding(Status.WARNING, what, text, "make room: a long run may fill it")
    return Finding(Status.OK, what, text)


class DiskCheck:
    """Checks the free space of each folder, writes a file to it, and removes the file.

    Args:
        context: the launch; the argument is the size that must be free.
        shared_memory: the folder in which workers share memory.
    """

    takes_argument = True

    def __init__(
        self,
        context: PluginContext,
        shared_memory: str = "/dev/shm",  # noqa: S108
    ) -> None:
        self._shared_memory = shared_memory
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
        if os.path.isdir(self._shared_memory):
            advice = "remove files that dead workers left there, or make it larger"
            tenth = self._machine.space(self._shared_memory).total // 10
            yield self._check_folder(self._shared_memory, min(self._floor, tenth), advice)

    def _check_folder(self, folder: str, floor: int, advice: str) -> Finding:
        try:
            free = self._machine.space(folder).free
            if free < floor:
                text = f"{folder} has {format_bytes(free)} free, less than {format_bytes(floor)}"
                return Finding(Status.PROBLEM, _WHAT, text, advice)
            self._machine.write_sample(folder)
        except OSError as error:
            text = f"{folder} cannot be written to: {error.strerror or error}"
            return Finding(Status.PROBLEM, _WHAT, text, advice)
        return Finding(Status.OK, _WHAT, f"{folder} has {format_bytes(free)} free")
