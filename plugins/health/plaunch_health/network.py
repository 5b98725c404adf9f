"""`network`: the interface that other nodes reach this one at is up, and they can be reached."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
from typing import TYPE_CHECKING

from plaunch.doctor import Finding, Status
from plaunch.errors import RendezvousConnectionError, UsageError
from plaunch.process import read_proc
from plaunch_network import (
    find_node_address,
    is_own_address,
    join_host_port,
    parse_rendezvous_endpoint,
    resolve_host,
)

from plaunch_health.waiting import Patience

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch.health import HealthOccasion
    from plaunch.plugin import PluginContext
    from plaunch_network import SocketAddress

_WHAT = "network"
# What torchrun and plaunch take if an endpoint has no port.
_DEFAULT_PORTS = {"c10d": 29400, "etcd": 2379, "etcd-v2": 2379}
_NO_PORT = -1
_GET_ADDRESS = 0x8915  # SIOCGIFADDR
_ADVICE = "check the cable, the interface and the route to the other nodes"


class NetworkCheck:
    """Looks at this node's interface, and connects to the rendezvous.

    Args:
        context: the launch.
        root: where the file system starts; `/` but in tests.
    """

    def __init__(self, context: PluginContext, root: str = "/") -> None:
        settings = context.settings
        self._root = root.rstrip("/")
        self._backend = str(settings.get("rdzv_backend", "")).rpartition(":")[2]
        self._is_service = self._backend.startswith("etcd")
        self._endpoint = str(settings.get("rdzv_endpoint", "") or "")
        most, local = settings.get("max_nodes"), settings.get("local_addr")
        self._max_nodes = most if isinstance(most, int) else 1
        self._local_addr = local if isinstance(local, str) else None
        configs = settings.get("rdzv_configs")
        self._is_file = isinstance(configs, dict) and configs.get("store_type") == "file"
        self._patience = Patience()

    def check(self, occasion: HealthOccasion) -> Iterator[Finding]:
        """Look at the interface, then at the endpoint."""
        self._patience.begin(occasion)
        places = [] if self._is_file else list(self._places())
        host, port = next(((h, p) for h, p in places if p > 0), ("", 0))
        yield self._look_at_interface(host, port)
        if places:
            yield self._reach(places, is_restart=occasion.is_restart)

    # --- the interface ----------------------------------------------------------------------------

    def _look_at_interface(self, host: str, port: int) -> Finding:
        address = find_node_address(
            host, port, max_nodes=self._max_nodes, local_addr=self._local_addr
        )
        with contextlib.suppress(RendezvousConnectionError):  # it may be a name
            found = resolve_host(address, 1, self._patience.remaining)
            address = found[0].host if found else address
        name = self._interface_of(address)
        if not name:
            return Finding(Status.OK, _WHAT, f"no interface has {address}: not looked at")
        state = self._read(f"{name}/operstate")
        carrier = self._read(f"{name}/carrier")
        # What has no state of its own, such as loopback, is "unknown".
        if state in ("down", "lowerlayerdown", "notpresent", "dormant") or carrier == "0":
            why = "has no carrier" if carrier == "0" else f"is {state}"
            return Finding(Status.PROBLEM, _WHAT, f"{name} with {address} {why}", _ADVICE)
        return Finding(Status.OK, _WHAT, f"{name} with {address} is up")

    def _interface_of(self, address: str) -> str:
        """The interface that has an address; empty if none of those that can be seen does."""
        for line in read_proc("net/if_inet6", f"{self._root}/proc").decode().splitlines():
            packed, *_, name = line.split()
            if socket.inet_ntop(socket.AF_INET6, bytes.fromhex(packed)) == address:
                return name
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for _, name in socket.if_nameindex():
                with contextlib.suppress(OSError):
                    asked = struct.pack("256s", name.encode()[:15])
                    answer = fcntl.ioctl(sock.fileno(), _GET_ADDRESS, asked)
                    if socket.inet_ntoa(answer[20:24]) == address:
                        return name
        return ""

    def _read(self, path: str) -> str:
        try:
            with open(f"{self._root}/sys/class/net/{path}", encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return ""  # the carrier of an interface that is down cannot be read

    # --- the endpoint -----------------------------------------------------------------------------

    def _places(self) -> Iterator[tuple[str, int]]:
        default = _DEFAULT_PORTS.get(self._backend, _NO_PORT)
        for part in filter(None, self._endpoint.split(",")):
            text = part.strip().rpartition("://")[2].rstrip("/")
            with contextlib.suppress(UsageError):  # which the backend itself refuses
                yield parse_rendezvous_endpoint(text, default)

    def _reach(self, places: list[tuple[str, int]], *, is_restart: bool) -> Finding:
        """One of them suffices: of several, each is a member of the same service."""
        said = [self._connect(host, port) for host, port in places if port > 0]
        if not said:
            where = f"{self._endpoint} names no port: not connected to"
            return Finding(Status.OK, _WHAT, where)
        for is_reached, text in said:
            if is_reached:
                return Finding(Status.OK, _WHAT, text)
        text = "; ".join(text for _, text in said)
        # Nodes may come in any order, and a scheduler may name one before it is there.
        is_early = not is_restart and not self._is_service
        status = Status.WARNING if is_early else Status.PROBLEM
        return Finding(status, _WHAT, text, _ADVICE)

    def _connect(self, host: str, port: int) -> tuple[bool, str]:
        where = join_host_port(host, port)
        try:
            addresses = resolve_host(host, port, self._patience.remaining / 2)
        except RendezvousConnectionError as error:
            return False, str(error)
        is_hosted = not self._is_service  # then by one of the nodes, or by its launcher
        if is_hosted and any(map(is_own_address, addresses)):
            return True, f"{where} is this node"
        answers = [self._ask(address, len(addresses)) for address in addresses]
        if any(not answer for answer in answers):
            return True, f"{where} accepts connections"
        if self._backend == "static" and any("refused" in answer for answer in answers):
            return True, f"{where} can be reached; nothing listens there between rounds"
        return False, f"{where} cannot be reached: {'; '.join(answers)}"

    def _ask(self, address: SocketAddress, number: int) -> str:
        """Why no connection to `address`, one of `number`, can be made; empty if one can."""
        try:
            with socket.socket(address.family, socket.SOCK_STREAM) as sock:
                sock.settimeout(max(self._patience.remaining / (number + 1), 0.1))
                sock.connect(address.sockaddr)
        except ConnectionRefusedError:
            return f"{address} has refused"
        except TimeoutError:
            return f"{address} has not answered"
        except OSError as error:
            return f"{address}: {error.strerror or error}"
        return ""
