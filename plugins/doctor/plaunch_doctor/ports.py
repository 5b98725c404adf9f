"""Checks of the ports that the launcher and the workers will listen on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.doctor import Finding, Status

from plaunch_doctor.network import FREE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch_doctor.context import NodeContext

_FEW = 1000  # ports for outgoing connections; ranks of a large world open thousands
_RANGE_TRIED = 256  # ports of a given range that are tried
_RANGE_NEEDED = 2  # a round's port, and one more in case another program takes the first


def check_ports(context: NodeContext) -> Iterator[Finding]:
    """Check the range of ephemeral ports, and the ports that options name."""
    first, last = _ephemeral(context)
    if last:
        used = _used(context, first, last)
        size = last - first + 1
        left = size - used
        few = left < _FEW
        yield Finding(
            Status.WARNING if few else Status.OK,
            "free ports",
            f"{left} of {size} in {first}-{last} (net.ipv4.ip_local_port_range)",
            "widen that range with sysctl, or end programs that hold connections" if few else "",
        )
    if context.network.bind(0) != FREE:
        yield Finding(
            Status.PROBLEM,
            "free ports",
            "the system has no free port left",
            "look for a program that holds connections: ss -s",
        )
    yield from _check_master_port(context, first, last)
    yield from _check_range(context)


def _check_master_port(context: NodeContext, first: int, last: int) -> Iterator[Finding]:
    port = context.options.get("master_port")
    reserved = context.read("/proc/sys/net/ipv4/ip_local_reserved_ports")
    if isinstance(port, int) and first <= port <= last and not reserved:
        yield Finding(
            Status.WARNING,
            "master port",
            f"{port} is in the range that the system assigns to any connection ({first}-{last})",
            f"choose a --master-port below {first}: another program may get this one first",
        )


def _check_range(context: NodeContext) -> Iterator[Finding]:
    given = context.options.get("port_range")
    if not isinstance(given, tuple):
        return
    first, last = given
    tried = range(first, min(last, first + _RANGE_TRIED - 1) + 1)
    free = sum(context.network.bind(port) == FREE for port in tried)
    said = f"{free} of the {len(tried)} ports tried in {first}-{last} are free"
    if free == 0:
        yield Finding(
            Status.PROBLEM,
            "port range",
            said,
            "give another --port-range, or end the programs that use them",
        )
    elif free < _RANGE_NEEDED:
        yield Finding(
            Status.WARNING,
            "port range",
            said,
            f"give a --port-range of {_RANGE_NEEDED} free ports or more: every round needs one",
        )
    else:
        yield Finding(Status.OK, "port range", said)


def _ephemeral(context: NodeContext) -> tuple[int, int]:
    words = context.read("/proc/sys/net/ipv4/ip_local_port_range").split()
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        return 0, 0
    return int(words[0]), int(words[1])


def _used(context: NodeContext, first: int, last: int) -> int:
    """Count the ports of the range that TCP sockets in this network namespace use."""
    used = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in context.read(table).splitlines()[1:]:
            words = line.split()
            if len(words) > 1:
                used.add(int(words[1].rpartition(":")[2], 16))
    return sum(first <= port <= last for port in used)
