"""Which versions of etcd should be upgraded."""

from __future__ import annotations

import re

# The first patch of each minor version in which a read whose deadline passes cannot crash the
# server. etcd issue 14110 is fixed in 3.5.5; that fix can crash it too (issue 14891), which is
# fixed in 3.5.7 and 3.4.23. 3.6 has had both fixes from the start.
MIN_PATCHES = {(3, 4): 23, (3, 5): 7}
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")


def is_outdated(version: str) -> bool:
    """Whether a server of this version should be upgraded; False if the version is unreadable."""
    found = _VERSION.match(version)
    if found is None:
        return False
    major, minor, patch = map(int, found.groups())
    return (major, minor) < min(MIN_PATCHES) or patch < MIN_PATCHES.get((major, minor), 0)


def describe_minimum() -> str:
    """Return the oldest recommended versions: `3.4.23 or 3.5.7`."""
    return " or ".join(
        f"{major}.{minor}.{patch}" for (major, minor), patch in sorted(MIN_PATCHES.items())
    )
