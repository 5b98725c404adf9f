"""Folders for log files, which are never used twice."""

from __future__ import annotations

import os

from plaunch.errors import LogDirectoryError
from plaunch.folders import absolute

_MAX_NAME_CHARS = 120  # of a run id inside a folder name; file systems allow 255 bytes


def create_log_folder(parent: str, name: str, *, mode: int = 0o777, middle: str = "") -> str:
    """Create the folder `<parent>/<name>_<middle>-<random>`, which nobody else has.

    Missing parents are created as well. Returns its absolute path.

    Raises:
        LogDirectoryError: it cannot be created.
    """
    parent = absolute(parent, "log directory")
    try:
        os.makedirs(parent, exist_ok=True)
    except (OSError, ValueError) as error:  # what no path may contain is a ValueError
        raise LogDirectoryError(f"log directory {parent!r} cannot be created: {error}") from error
    stem = os.path.join(parent, folder_name(name))
    while True:
        path = f"{stem}_{middle}{'-' if middle else ''}{os.urandom(4).hex()}"
        try:
            os.mkdir(path, mode)
        except FileExistsError:
            continue
        except OSError as error:
            raise LogDirectoryError(f"log folder {path!r} cannot be created: {error}") from error
        return path


def folder_name(text: str) -> str:
    """`text` as one component of a path: no separators, no spaces, not hidden, not too long."""
    name = "".join(
        char if char.isascii() and (char.isalnum() or char in "-_.+=@") else "_"
        for char in text[:_MAX_NAME_CHARS]
    )
    return "_" + name[1:] if name.startswith(".") else name
