"""Removing temporary folders of logs, by their launcher or a process that outlives it."""

from __future__ import annotations

import os

PREFIX = "plaunch_"


def remove_temporary(folder: str) -> None:
    """Remove a temporary folder and all that is in it; a symbolic link is removed, never followed.

    A folder whose name does not begin with `plaunch_` is left alone.

    Raises:
        OSError: something in it cannot be removed.
    """
    if not os.path.basename(folder).startswith(PREFIX) or os.path.islink(folder):
        return
    for parent, folders, files in os.walk(folder, topdown=False):
        for name in files:
            os.unlink(os.path.join(parent, name))
        for name in folders:
            path = os.path.join(parent, name)
            if os.path.islink(path):
                os.unlink(path)
            else:
                os.rmdir(path)
    os.rmdir(folder)
