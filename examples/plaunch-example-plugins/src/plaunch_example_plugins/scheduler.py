"""A scheduler: `--scheduler=hostfile` takes the settings of nodes from a host file.

The nodes meet over the backend `c10d`, and need no other options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.errors import UsageError
from plaunch.scheduling import Allocation

from plaunch_example_plugins.hostfile import (
    FILE_VARIABLE,
    HOST_VARIABLE,
    find_this_host,
    read_hosts,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


def find_allocation(environ: Mapping[str, str]) -> Allocation:
    """Return this host's allocation from the host file that the variable HOSTFILE names.

    Raises:
        UsageError: the variable is not set, or the file is unusable.
    """
    path = environ.get(FILE_VARIABLE)
    if not path:
        raise UsageError(f"--scheduler=hostfile needs the variable {FILE_VARIABLE}, a path")
    hosts = read_hosts(path)
    place = find_this_host(hosts, environ.get(HOST_VARIABLE))
    return Allocation(
        nnodes=len(hosts),
        node_rank=place,
        endpoint=hosts[0].address,
        nproc_per_node=hosts[place].slots,
        sources=dict.fromkeys(("nnodes", "node_rank", "endpoint", "nproc_per_node"), FILE_VARIABLE),
        missing={"run_id": "a host file is for many jobs; give --rdzv-id, the same on all hosts"},
    )
