"""Removes temporary folders of logs; called by the launcher, or by the guard after it."""

from __future__ import annotations

import os

PREFIX = "plaunch_"


def remove_temporary(folder: str) -> None:
    """Remove a temporary folder and its content. Symbolic links are removed, never followed.

    Does nothing if the name of the folder does not begin with `plaunch_`.

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
