"""What runs in the fork server and in a worker before its program; standard library only.

It is imported as `plaunch_fork_server` by an interpreter that may not have plaunch installed, and
as `plaunch_preload.server` by the launcher, which shares its messages.
"""

from __future__ import annotations


def serve(hook: str) -> None:
    """Import the modules and serve; returns in a forked worker only.

    Args:
        hook: the folder in `PYTHONPATH` that has brought the interpreter here.
    """
    from .server import run  # the launcher does not want it

    run(hook)
