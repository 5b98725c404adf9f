"""What a store says of its host, so that messages can name it, and other hosts are noticed."""

from __future__ import annotations

import os

IDENTITY = "plaunch/host"  # the key of the identity of the store
JOB_OF_HOST = "plaunch/host/job"  # the key of the run id of the host's job


def make_identity() -> str:
    """Return a name of this host and process that no other store has."""
    return f"{os.uname().nodename} (pid {os.getpid()}, {os.urandom(4).hex()})"
