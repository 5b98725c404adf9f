"""Whether this machine lets a process read the stacks of others."""

from __future__ import annotations

import pytest
from plaunch_hang.stacks import own_stacks

from helpers.programs import running_python


@pytest.fixture
def readable_stacks():
    """py-spy can read a process that is not its own child; else the test is skipped."""
    with running_python("-c", "print(flush=True); input()") as process:
        process.stdout.readline()
        seen = own_stacks({0: process.pid})[0]
        if "not installed" in seen.reason:
            raise AssertionError(seen.reason)  # it is, for the tests
        if seen.main is None:
            pytest.skip(f"stacks cannot be read here: {seen.reason}")
