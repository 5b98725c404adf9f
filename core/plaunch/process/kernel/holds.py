"""What holds a process that has not ended, and cannot run."""

from __future__ import annotations

from plaunch.control_groups import group_paths
from plaunch.process.kernel.details import find_field, read_file
from plaunch.process.kernel.processes import PROC

_STOPPED = (b"T", b"t")


def describe_hold(pid: int, proc: str = PROC, root: str = "") -> str:
    """What holds a process, in words such as `suspended (SIGSTOP)`; empty if it may run.

    A debugger or tracer holds a process, a signal suspends it, or its control group is frozen.

    Args:
        pid: the process.
        proc: the folder of processes.
        root: where the file system of control groups starts.
    """
    status = read_file(f"{proc}/{pid}/status")
    tracer = find_field(status, b"TracerPid:").decode(errors="replace")
    if tracer not in ("", "0"):
        name = read_file(f"{proc}/{tracer}/comm").decode(errors="replace").strip()
        return f"traced by {name or 'a debugger'} (pid {tracer})"
    if find_field(status, b"State:")[:1] in _STOPPED:
        return "suspended (SIGSTOP)"
    return "frozen by its control group" if status and _is_frozen(pid, proc, root) else ""


def _is_frozen(pid: int, proc: str, root: str) -> bool:
    groups = read_file(f"{proc}/{pid}/cgroup").decode(errors="replace")
    # What is frozen above is frozen below. Files: "frozen 1" in version 2, "FROZEN" in version 1.
    for path in group_paths(groups, "freezer", "cgroup.events", "freezer.state"):
        text = read_file(root + path)
        if text and (b"frozen 1" in text.splitlines() or text.strip() == b"FROZEN"):
            return True
    return False
