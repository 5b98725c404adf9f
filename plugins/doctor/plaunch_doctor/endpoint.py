"""Checks of the rendezvous endpoint, and of the ports that workers and plugins listen on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from plaunch.doctor import Finding, Status
from plaunch.errors import RendezvousConnectionError, UsageError
from plaunch.process import why_not_writable
from plaunch.rendezvous import TOKEN_OPTION, TOKEN_VARIABLE
from plaunch_network import (
    SocketAddress,
    is_loop_back,
    join_host_port,
    names_this_machine,
    parse_rendezvous_endpoint,
)

from plaunch_doctor.network import ACCEPTED, FREE, REFUSED, TAKEN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch_doctor.context import NodeContext

_WHAT = "endpoint"
_ETCD = ("etcd", "etcd-v2")
_NO_PORT = -1  # neither the endpoint nor the backend names a port
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy", "all_proxy")
_FEW = 1000  # ports for outgoing connections; ranks of a large world open thousands
_RANGE_TRIED = 256  # ports of a given range that are tried
_RANGE_NEEDED = 2  # a round's port, and one more in case another program takes the first


def check_endpoint(context: NodeContext) -> Iterator[Finding]:
    """Resolve the endpoint; then connect to it or, on its own node, check that its port is free."""
    endpoint = str(context.settings.get("rdzv_endpoint", ""))
    configs = context.settings.get("rdzv_configs")
    options = configs if isinstance(configs, dict) else {}
    backend = context.backend.rpartition(":")[2]
    if not backend:
        yield Finding(Status.OK, _WHAT, "not checked: the settings are not known")
    elif backend in _ETCD:
        yield from _check_members(context, endpoint or "localhost")
        yield from _check_proxies(context)
    elif backend == "c10d" and options.get("store_type") == "file":
        yield from _check_folder(os.path.dirname(os.path.abspath(endpoint or "/tmp/x")))  # noqa: S108
    elif not endpoint and context.max_nodes == 1:
        yield Finding(Status.OK, _WHAT, f"not needed: one node, backend {backend}")
    elif not endpoint:
        yield Finding(Status.OK, _WHAT, f"not given; whether {backend} needs one is not known")
    else:
        is_host = _rank(options) == 0 if context.traits.has_given_ranks else None
        yield from _check_hosted_endpoint(context, endpoint, is_host=is_host)
        if backend == "c10d":
            yield _describe_token(context, options)


def _describe_token(context: NodeContext, options: dict[str, object]) -> Finding:
    if TOKEN_OPTION in options or context.environ.get(TOKEN_VARIABLE):
        return Finding(Status.OK, "job token", "given; all nodes need the same one")
    are_several = context.max_nodes > 1
    return Finding(
        Status.WARNING if are_several else Status.OK,
        "job token",
        f"none{', and several nodes' if are_several else ''}; every program that reaches the "
        "endpoint can read and change the store. On a network that others use, set "
        f"{TOKEN_VARIABLE} to the same secret on all nodes: the output of `openssl rand -hex 32`",
    )


def _parse(context: NodeContext, endpoint: str) -> tuple[str, int]:
    port = context.traits.default_port
    return parse_rendezvous_endpoint(endpoint, _NO_PORT if port is None else port)


def _rank(options: dict[str, object]) -> int:
    return int(str(options.get("rank", 0)))


def _check_hosted_endpoint(
    context: NodeContext, endpoint: str, *, is_host: bool | None
) -> Iterator[Finding]:
    """Check an endpoint on which one of the nodes listens.

    Args:
        context: the context.
        endpoint: the endpoint.
        is_host: whether this node listens on it; None if unknown.
    """
    try:
        host, port = _parse(context, endpoint)
    except UsageError as error:
        yield Finding(Status.PROBLEM, _WHAT, str(error), "write --rdzv-endpoint=HOST:PORT")
        return
    if port == _NO_PORT:
        text = f"not checked: {endpoint!r} names no port, and the backend declares no default"
        yield Finding(Status.OK, _WHAT, text)
        return
    where = join_host_port(host, port)
    addresses, trouble = _resolve(context, host, port)
    if trouble is not None:
        yield trouble
        return
    if _needs_missing_ipv6(context, addresses):
        yield Finding(
            Status.PROBLEM,
            _WHAT,
            f"{where} has IPv6 addresses only, and IPv6 is disabled on this node",
            "give an IPv4 address in --rdzv-endpoint or --master-addr",
        )
        return
    here = names_this_machine(host) or any(context.network.is_own(a) for a in addresses)
    if context.max_nodes > 1 and addresses and all(is_loop_back(a.host) for a in addresses):
        yield Finding(
            Status.WARNING,
            _WHAT,
            f"{where} is loopback, in a job of up to {context.max_nodes} nodes",
            "give an address that the other nodes reach, unless all agents run on this machine",
        )
    if is_host and not here:
        yield Finding(
            Status.PROBLEM,
            _WHAT,
            f"{where} is not this machine, but this is node 0, whose workers open it",
            "give the address of node 0 in --master-addr, or another --node-rank here",
        )
    elif here and is_host is not False:
        yield _check_here(context, where, port, must_be_free=is_host is True)
    else:
        yield _check_there(context, where, addresses)


def _check_here(context: NodeContext, where: str, port: int, *, must_be_free: bool) -> Finding:
    state = context.network.bind(port) if port else FREE
    if state == FREE:
        return Finding(Status.OK, _WHAT, f"{where} is this node, and the port is free")
    if state != TAKEN:
        return Finding(
            Status.PROBLEM,
            _WHAT,
            f"{where} is this node, which may not listen on port {port}",
            "choose a port from 1024 up",
        )
    owner = context.network.owner(port) or "a process that this user cannot see"
    if must_be_free:
        return Finding(
            Status.PROBLEM,
            _WHAT,
            f"{where} is this node, and the port is taken by {owner}",
            "end that program, or choose another port",
        )
    return Finding(
        Status.WARNING,
        _WHAT,
        f"{where} is this node, and {owner} listens there",
        "this agent would connect to that program; if it does not belong to this job, choose "
        "another port",
    )


def _check_there(context: NodeContext, where: str, addresses: tuple[SocketAddress, ...]) -> Finding:
    answers = [
        (address, *context.network.connect(address, _share(context, addresses)))
        for address in addresses
    ]
    text = "; ".join(f"{address}: {reason}" for address, _, reason in answers)
    if any(answer == ACCEPTED for _, answer, _ in answers):
        return Finding(Status.OK, _WHAT, f"{where} accepts connections")
    if any(answer == REFUSED for _, answer, _ in answers):
        return Finding(
            Status.WARNING,
            _WHAT,
            f"{where} can be reached, but nothing listens there ({text})",
            "no action, if plaunch is not running there yet; else check the port, and check that "
            "the host name belongs to the node that hosts the endpoint",
        )
    return Finding(
        Status.PROBLEM,
        _WHAT,
        f"{where} does not answer ({text})",
        "check the address, and that no firewall or security group drops the port between nodes",
    )


def _check_members(context: NodeContext, endpoint: str) -> Iterator[Finding]:
    good = 0
    bad: list[Finding] = []
    for part in endpoint.split(","):
        try:
            host, port = _parse(context, part.strip().rpartition("://")[2].rstrip("/"))
        except UsageError as error:
            yield Finding(Status.PROBLEM, _WHAT, str(error), "write host1:2379,host2:2379")
            continue
        if port == _NO_PORT:
            text = f"not checked: {part!r} names no port, and the backend declares no default"
            yield Finding(Status.OK, _WHAT, text)
            continue
        addresses, trouble = _resolve(context, host, port)
        found = trouble or _check_there(context, join_host_port(host, port), addresses)
        if found.status is Status.OK:
            good += 1
            yield found
        else:
            bad.append(found)
    for found in bad:
        yield Finding(
            Status.WARNING if good else Status.PROBLEM,
            _WHAT,
            found.found,
            "start etcd there, or correct --rdzv-endpoint"
            if not good
            else "no action, as long as the other members are a majority",
        )


def _check_proxies(context: NodeContext) -> Iterator[Finding]:
    found = sorted(
        name for name in context.environ if name.lower() in _PROXIES and context.environ[name]
    )
    if found:
        yield Finding(
            Status.OK,
            "proxies",
            f"{', '.join(found)} set; plaunch's connections to etcd do not go through a proxy",
        )


def _check_folder(folder: str) -> Iterator[Finding]:
    if os.path.isdir(folder) and not why_not_writable(folder):
        yield Finding(Status.OK, _WHAT, f"{folder} can be written to; all nodes must see it")
    else:
        yield Finding(
            Status.PROBLEM,
            _WHAT,
            f"{folder} is not a writable folder",
            "give a file on storage that all nodes share in --rdzv-endpoint",
        )


def _resolve(
    context: NodeContext, host: str, port: int
) -> tuple[tuple[SocketAddress, ...], Finding | None]:
    try:
        return context.network.resolve(host, port, context.timeout), None
    except RendezvousConnectionError as error:
        if names_this_machine(host.partition(".")[0]):
            advice = "no action, if this node hosts the endpoint; else correct the name"
            return (), Finding(Status.WARNING, _WHAT, str(error), advice)
        return (), Finding(
            Status.PROBLEM,
            _WHAT,
            str(error),
            "correct the name, wait for its DNS record (Kubernetes creates it with the pod), or "
            "give an address",
        )


def _needs_missing_ipv6(context: NodeContext, addresses: tuple[SocketAddress, ...]) -> bool:
    if not addresses or any(":" not in address.host for address in addresses):
        return False
    return (
        not os.path.exists(context.path("/proc/net/if_inet6"))
        or context.read("/proc/sys/net/ipv6/conf/all/disable_ipv6") == "1"
    )


def _share(context: NodeContext, addresses: tuple[SocketAddress, ...]) -> float:
    return context.timeout / max(len(addresses), 1)


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
    text = f"{free} of the {len(tried)} ports tried in {first}-{last} are free"
    if free == 0:
        yield Finding(
            Status.PROBLEM,
            "port range",
            text,
            "give another --port-range, or end the programs that use them",
        )
    elif free < _RANGE_NEEDED:
        yield Finding(
            Status.WARNING,
            "port range",
            text,
            f"give a --port-range of {_RANGE_NEEDED} free ports or more: every round needs one",
        )
    else:
        yield Finding(Status.OK, "port range", text)


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
