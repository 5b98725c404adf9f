"""The checks that come with plaunch, and how all checks run."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from plaunch.doctor import Finding, Status
from plaunch.errors import ThreadStartError
from plaunch.threads import BoundedCall

from plaunch_doctor.disks import check_log_folder, check_temporary_folder
from plaunch_doctor.endpoint import check_endpoint, check_ports
from plaunch_doctor.findings import collect_findings
from plaunch_doctor.host import (
    check_clock,
    check_host_name,
    check_interfaces,
    check_leftovers,
)
from plaunch_doctor.installation import check_interpreter, check_versions
from plaunch_doctor.limits import (
    check_core_files,
    check_locked_memory,
    check_open_files,
    check_processes,
    check_processors,
)
from plaunch_doctor.memory import check_memory, check_shared_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plaunch_doctor.context import NodeCheck, NodeContext

CHECKS_TIMEOUT = 15.0  # seconds for all checks; they run at the same time

# In the order in which they are reported.
CHECKS: Mapping[str, NodeCheck] = MappingProxyType(
    {
        "interpreter": check_interpreter,
        "versions": check_versions,
        "host name": check_host_name,
        "interfaces": check_interfaces,
        "endpoint": check_endpoint,
        "ports": check_ports,
        "shared memory": check_shared_memory,
        "memory": check_memory,
        "processors": check_processors,
        "open files": check_open_files,
        "processes": check_processes,
        "core files": check_core_files,
        "locked memory": check_locked_memory,
        "clock": check_clock,
        "log folder": check_log_folder,
        "temporary files": check_temporary_folder,
        "leftovers": check_leftovers,
    }
)


def run_checks(
    checks: Mapping[str, NodeCheck], context: NodeContext, timeout: float = CHECKS_TIMEOUT
) -> list[Finding]:
    """Run all checks at the same time, and return their findings in the order of `checks`.

    A check that raises, returns anything other than findings, or takes longer than `timeout`, is
    reported as broken.

    Args:
        checks: the checks by name, which is the heading of a broken one.
        context: passed to each check.
        timeout: seconds for all of them together.
    """
    deadline = time.monotonic() + timeout
    runs = {
        name: partial(collect_findings, partial(check, context), partial(_broken, name))
        for name, check in checks.items()
    }
    calls = {name: start_call(f"check-{name}", run) for name, run in runs.items()}
    findings: list[Finding] = []
    for name, call in calls.items():
        if call is None:
            findings += runs[name]()
        elif call.wait(deadline - time.monotonic()):
            findings += call.result  # type: ignore[arg-type]
        else:
            late = f"did not finish within {timeout:g} s"
            findings.append(_broken(name, late, "; it was abandoned"))
    return findings


def start_call(name: str, function: Callable[[], object]) -> BoundedCall | None:
    """Start a call on a thread; None if the system has no more threads.

    The caller then makes the call itself, without a time limit: the checks should report what is
    missing.
    """
    with contextlib.suppress(ThreadStartError):
        return BoundedCall(name, function)
    return None


def _broken(name: str, text: str, more: str = "") -> Finding:
    return Finding(
        Status.BROKEN,
        name,
        f"the check {text}",
        f"the subject of the check is not known{more}. If the check belongs to a plugin, report "
        "this to its author",
    )
