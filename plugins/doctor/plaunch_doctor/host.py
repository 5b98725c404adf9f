"""Checks of the host: its name, network interfaces and clock, and processes of earlier jobs."""

from __future__ import annotations

import datetime
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plaunch.doctor import Finding, Status
from plaunch.errors import RendezvousConnectionError
from plaunch.process import (
    JOBS_VARIABLE,
    find_variable,
    read_command,
    read_environ,
    read_name,
    read_table,
)
from plaunch_network import is_loop_back

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch.doctor import DoctorContext

    from plaunch_doctor.context import NodeContext

_SLOW = 1.0  # seconds; torch resolves names in every worker
_WHAT = "host name"
_RELEASED = 1735689600.0  # 1 January 2025, before the first release of plaunch
_FAR = 50 * 365 * 86400.0  # seconds
_TORCHRUN = "TORCHELASTIC_RUN_ID"
_REAPERS = ("systemd", "init", "tini", "dumb-init", "catatonit", "s6-svscan", "slurmstepd")
_SHOWN = 5  # processes


def check_host_name(context: NodeContext) -> Iterator[Finding]:
    """Resolve the host's name to addresses, and an address back to a name; measure the time."""
    several = context.max_nodes > 1
    began = time.monotonic()
    try:
        addresses = context.network.resolve(context.host, 0, context.timeout)
    except RendezvousConnectionError as error:
        yield Finding(
            Status.PROBLEM if several and not _has_gloo_interface(context) else Status.WARNING,
            _WHAT,
            str(error),
            f"add {context.host!r} with this node's address to /etc/hosts, or set "
            "GLOO_SOCKET_IFNAME: gloo resolves the host's name, else it uses loopback (plaunch "
            "itself uses addresses)",
        )
        return
    took = time.monotonic() - began
    numbers = list(dict.fromkeys(address.host for address in addresses))
    text = f"{context.host} -> {', '.join(numbers)}"
    foreign = [a.host for a in addresses if not context.network.is_own(a)]
    if foreign:
        yield Finding(
            Status.PROBLEM if several and len(foreign) == len(addresses) else Status.WARNING,
            _WHAT,
            f"{text}; {', '.join(foreign)} is not an address of this machine",
            "correct /etc/hosts or the name server: programs that use the name connect to another "
            "machine",
        )
    elif several and all(is_loop_back(number) for number in numbers):
        trap = " (Debian's entry in /etc/hosts)" if "127.0.1.1" in numbers else ""
        has_interface = _has_gloo_interface(context)
        yield Finding(
            Status.OK if has_interface else Status.PROBLEM,
            _WHAT,
            f"{text}: loopback only{trap}",
            ""
            if has_interface
            else "give the name this node's real address in /etc/hosts, or set GLOO_SOCKET_IFNAME: "
            "gloo uses the address that the name resolves to, and other nodes cannot reach it "
            "(plaunch itself uses addresses)",
        )
    else:
        yield Finding(Status.OK, _WHAT, text)
    yield from _check_back(context, numbers, took)


def _check_back(context: NodeContext, numbers: list[str], took: float) -> Iterator[Finding]:
    what = "reverse name"
    began = time.monotonic()
    known: list[str] = []
    try:
        # Programs use the first address.
        known = context.network.names_of(numbers[0], context.timeout) if numbers else []
    except RendezvousConnectionError as error:
        yield Finding(
            Status.WARNING,
            what,
            str(error),
            "add address and name to /etc/hosts: programs that look up the full name of this host "
            "wait for the name server (torchrun and socket.getfqdn do, plaunch does not)",
        )
        return
    took += time.monotonic() - began
    text = f"{', '.join(numbers[:1])} -> {', '.join(known) or 'no name'}"
    short = context.host.partition(".")[0].lower()
    if took > _SLOW:
        yield Finding(
            Status.WARNING,
            what,
            f"{text}; name and address took {took:.1f} s to look up",
            "add address and name to /etc/hosts, or repair the name server in /etc/resolv.conf",
        )
    elif known and not any(
        name.partition(".")[0].lower() in (short, "localhost") for name in known
    ):
        yield Finding(
            Status.WARNING,
            what,
            f"{text}, which is not {context.host}",
            "correct the name server or /etc/hosts if other nodes use that name; use addresses in "
            "--rdzv-endpoint until then",
        )
    else:
        yield Finding(Status.OK, what, text)


def check_interfaces(context: NodeContext) -> Iterator[Finding]:
    """Check that the interfaces named in `NCCL_SOCKET_IFNAME` and its like exist."""
    there = context.list("/sys/class/net")
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        value = context.environ.get(variable, "")
        if not value or not there:
            continue
        words = [word for word in value.lstrip("^=").split(",") if word]
        is_prefix = variable.startswith("NCCL") and not value.startswith("=")
        missing = [
            word
            for word in words
            if not any(name.startswith(word) if is_prefix else name == word for name in there)
        ]
        if value.startswith("^") or not missing or (is_prefix and len(missing) < len(words)):
            yield Finding(Status.OK, variable, value)
        else:
            yield Finding(
                Status.PROBLEM,
                variable,
                f"{value!r}: this node has no {', '.join(missing)} (it has {', '.join(there)})",
                f"correct {variable} on this node; nodes may name their interfaces differently",
            )


def _has_gloo_interface(context: NodeContext) -> bool:
    return bool(context.environ.get("GLOO_SOCKET_IFNAME"))


def check_clock(context: NodeContext) -> Iterator[Finding]:
    """Check that the time is plausible, and that a service synchronises it."""
    now = context.machine.now()
    text = datetime.datetime.fromtimestamp(now, datetime.timezone.utc).strftime(
        "%Y-%m-%d %H:%M UTC"
    )
    if not _RELEASED < now < _RELEASED + _FAR:
        yield Finding(
            Status.PROBLEM,
            "clock",
            text,
            "set the clock: certificates are refused, and logs of several nodes cannot be compared",
        )
        return
    synchronised = context.machine.is_synchronised()
    # Only a warning: plaunch never compares clocks of different hosts.
    if synchronised is False:
        yield Finding(
            Status.WARNING,
            "clock",
            f"{text}, not synchronised, according to the kernel",
            "run chrony, ntpd or systemd-timesyncd on the host; this check cannot compare the "
            "clocks of other nodes",
        )
        return
    kept = (
        "synchronised" if synchronised else "the system does not report whether it is synchronised"
    )
    yield Finding(
        Status.OK, "clock", f"{text}, {kept} (this check cannot compare the clocks of other nodes)"
    )


@dataclass(frozen=True)
class _JobProcess:
    pid: int
    label: str  # the innermost job that the process belongs to
    command: str


def check_leftovers(context: DoctorContext) -> Iterator[Finding]:
    """Find workers whose launcher is gone: they hold devices, memory and ports.

    The parent of such a worker is the system's first process, or another reaper. Processes of other
    users are not found, because their environment cannot be read.
    """
    what = "leftovers"
    marked, left = _find(context)
    if left:
        shown = ", ".join(f"pid {m.pid} ({m.command}, {m.label})" for m in left[:_SHOWN])
        more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
        yield Finding(
            Status.WARNING,
            what,
            f"{len(left)} process(es) of earlier jobs whose launcher is gone: {shown}{more}",
            f"end them if they are not needed: kill {' '.join(str(m.pid) for m in left[:_SHOWN])}",
        )
    elif marked:
        yield Finding(
            Status.OK, what, f"none; {marked} process(es) of jobs that are running on this node"
        )
    else:
        yield Finding(Status.OK, what, "none: no process of an earlier job is on this node")


def _find(context: DoctorContext) -> tuple[int, list[_JobProcess]]:
    """Count the processes of jobs, and find those whose topmost process was orphaned."""
    proc = context.path("/proc")
    own = _job_label(read_environ(os.getpid(), proc)) if context.root == "/" else ""
    table = read_table(proc)
    words: dict[int, str] = {}
    for pid, process in table.items():
        if process.is_alive:
            word = _job_label(read_environ(pid, proc))
            if word and word != own:
                words[pid] = word
    left = []
    for pid, word in sorted(words.items()):
        top = pid
        while table[top].ppid in words:
            top = table[top].ppid
        parent = table[top].ppid
        name = read_name(parent, proc)
        if parent == 0 or name in _REAPERS or (parent == 1 and not _is_launcher(proc, parent)):
            left.append(_JobProcess(pid, word, read_name(pid, proc)))
    return len(words), left


def _is_launcher(proc: str, pid: int) -> bool:
    """Whether the first process of a container runs Python, so that it may be a launcher."""
    command = " ".join(read_command(pid, proc))
    return any(word in command for word in ("plaunch", "torchrun", "python"))


def _job_label(environ: bytes) -> str:
    jobs = find_variable(environ, JOBS_VARIABLE)
    if jobs:
        return "job " + jobs.rpartition(":")[2].partition(".")[0]
    run_id = find_variable(environ, _TORCHRUN)
    return f"torchrun's job {run_id}" if run_id else ""
