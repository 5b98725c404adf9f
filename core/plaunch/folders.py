"""The current folder, which somebody may have removed."""

from __future__ import annotations

import os

from plaunch.errors import UsageError


def absolute(path: str, name: str) -> str:
    """The path from the root on.

    Raises:
        UsageError: it is relative to a current folder that does not exist any more; the message
            begins with `name`.
    """
    try:
        return os.path.abspath(path)
    except FileNotFoundError:
        raise UsageError(
            f"{name} {path!r} is relative to the current folder, which does not exist any more; "
            "change to another one, or give a path that begins with /"
        ) from None
