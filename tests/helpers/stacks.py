"""Whether this machine lets a process read the stacks of others."""

from __future__ import annotations

import pytest
from plaunch_events.import_watch import read_stack

from helpers.programs import running_python


@pytest.fixture
def readable_stacks():
    """py-spy can read a process that is not its own child; else the test is skipped."""
    with running_python("-c", "print(flush=True); input()") as process:
        process.stdout.readline()
        try:
            read_stack(process.pid)
        except FileNotFoundError:
            raise  # it is installed for the tests
        except OSError as error:
            pytest.skip(f"stacks cannot be read here: {error}")
