"""A device counter: `--nproc-per-node=hostfile` starts as many workers as this host has slots."""

from __future__ import annotations

from plaunch_example_plugins.hostfile import find_this_host, read_hosts


def count_slots() -> int:
    """Return the slots of this host in the host file that the variable HOSTFILE names."""
    hosts = read_hosts()
    return hosts[find_this_host(hosts)].slots
