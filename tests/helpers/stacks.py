"""Skips tests if this machine does not allow reading the stacks of other processes."""

from __future__ import annotations

import pytest
from plaunch_hang.stacks import own_stacks

from helpers.machine_parts import report_missing
from helpers.programs import running_python


@pytest.fixture
def readable_stacks():
    """Skip the test unless py-spy can read a process that is not its child."""
    with running_python("-c", "print(flush=True); input()") as process:
        process.stdout.readline()
        seen = own_stacks({0: process.pid})[0]
        if "not installed" in seen.reason:
            raise AssertionError(seen.reason)  # it is, for the tests
        if seen.main is None:
            report_missing("stacks", seen.reason)
