"""The code of the fork server, and of a worker before its program; standard library only.

It is imported as `plaunch_fork_server` by an interpreter that may not have plaunch installed, and
as `plaunch_preload.server` by the launcher, which shares its messages.
"""

from __future__ import annotations


def serve(hook: str) -> None:
    """Import the modules and serve; only returns in a forked worker.

    Args:
        hook: the folder in `PYTHONPATH` with the `sitecustomize` of the fork server.
    """
    from .server import run  # not for the launcher

    run(hook)
