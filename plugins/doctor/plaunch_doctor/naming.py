"""Checks of the host's name, and of the network interfaces that variables name."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from plaunch.doctor import Finding, Status
from plaunch.errors import RendezvousConnectionError
from plaunch_network import is_loop_back

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch_doctor.context import NodeContext

_SLOW = 1.0  # seconds; torch resolves names in every worker
_WHAT = "host name"


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
    said = f"{context.host} -> {', '.join(numbers)}"
    foreign = [a.host for a in addresses if not context.network.is_own(a)]
    if foreign:
        yield Finding(
            Status.PROBLEM if several and len(foreign) == len(addresses) else Status.WARNING,
            _WHAT,
            f"{said}; {', '.join(foreign)} is not an address of this machine",
            "correct /etc/hosts or the name server: programs that use the name connect to another "
            "machine",
        )
    elif several and all(is_loop_back(number) for number in numbers):
        trap = " (Debian's entry in /etc/hosts)" if "127.0.1.1" in numbers else ""
        has_interface = _has_gloo_interface(context)
        yield Finding(
            Status.OK if has_interface else Status.PROBLEM,
            _WHAT,
            f"{said}: loopback only{trap}",
            ""
            if has_interface
            else "give the name this node's real address in /etc/hosts, or set GLOO_SOCKET_IFNAME: "
            "gloo uses the address that the name resolves to, and other nodes cannot reach it "
            "(plaunch itself uses addresses)",
        )
    else:
        yield Finding(Status.OK, _WHAT, said)
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
    said = f"{', '.join(numbers[:1])} -> {', '.join(known) or 'no name'}"
    short = context.host.partition(".")[0].lower()
    if took > _SLOW:
        yield Finding(
            Status.WARNING,
            what,
            f"{said}; name and address took {took:.1f} s to look up",
            "add address and name to /etc/hosts, or repair the name server in /etc/resolv.conf",
        )
    elif known and not any(
        name.partition(".")[0].lower() in (short, "localhost") for name in known
    ):
        yield Finding(
            Status.WARNING,
            what,
            f"{said}, which is not {context.host}",
            "correct the name server or /etc/hosts if other nodes use that name; use addresses in "
            "--rdzv-endpoint until then",
        )
    else:
        yield Finding(Status.OK, what, said)


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
