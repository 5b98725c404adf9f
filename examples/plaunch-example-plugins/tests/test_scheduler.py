from __future__ import annotations

import pytest
from plaunch.errors import UsageError
from plaunch_example_plugins.scheduler import find_allocation


def test_a_host_file_gives_everything_except_the_run_id(tmp_path):
    path = tmp_path / "hosts.txt"
    path.write_text("alpha slots=4 addr=10.0.0.6\nbeta slots=2\n")
    allocation = find_allocation({"HOSTFILE": str(path), "HOSTFILE_HOST": "beta"})
    assert (allocation.nnodes, allocation.node_rank) == (2, 1)
    assert (allocation.endpoint, allocation.nproc_per_node) == ("10.0.0.6", 2)
    assert list(allocation.missing) == ["run_id"]


def test_without_a_file_the_variable_is_named():
    with pytest.raises(UsageError, match="needs the variable HOSTFILE"):
        find_allocation({})
