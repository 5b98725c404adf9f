"""The network: access to names, addresses and ports, and the health check `network`."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import socket
import struct
from typing import TYPE_CHECKING, cast

from plaunch.doctor import DoctorContext, Finding, Status
from plaunch.errors import RendezvousConnectionError, UsageError
from plaunch.threads import BoundedCall
from plaunch_network import (
    SocketAddress,
    find_node_address,
    is_own_address,
    join_host_port,
    parse_rendezvous_endpoint,
    port_owner,
    resolve_host,
)

from plaunch_doctor.health import CheckDeadline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch.health import HealthOccasion
    from plaunch.plugin import PluginContext

FREE, TAKEN, FORBIDDEN = "free", "taken", "forbidden"
ACCEPTED, REFUSED, SILENT = "accepted", "refused", "silent"
_WHAT = "network"
# The ports that torchrun and plaunch use for endpoints without a port.
_DEFAULT_PORTS = {"c10d": 29400, "etcd": 2379, "etcd-v2": 2379}
_NO_PORT = -1
_GET_ADDRESS = 0x8915  # SIOCGIFADDR
_ADVICE = "check the cable, the interface and the route to the other nodes"


class Network:
    """The network as this host sees it. Tests replace it with a fake."""

    def resolve(self, host: str, port: int, timeout: float) -> tuple[SocketAddress, ...]:
        """Return the addresses of `host`.

        Raises:
            RendezvousConnectionError: the name is unknown, or not resolved in `timeout` seconds.
        """
        return resolve_host(host, port, timeout)

    def names_of(self, address: str, timeout: float) -> list[str]:
        """Return the names of `address`, the primary name first; empty if it has none.

        Raises:
            RendezvousConnectionError: not resolved in `timeout` seconds.
        """

        def lookup() -> list[str]:
            try:
                name, aliases, _ = socket.gethostbyaddr(address)
            except OSError:
                return []
            return [name, *aliases]

        # The system's resolver cannot be interrupted.
        call = BoundedCall("names", lookup)
        if not call.wait(timeout):
            raise RendezvousConnectionError(
                f"the name server has not answered for {address} within {timeout:g} s"
            )
        if call.error is not None:
            raise call.error
        return cast("list[str]", call.result)

    def is_own(self, address: SocketAddress) -> bool:
        """Whether `address` belongs to this host."""
        return is_own_address(address)

    def connect(self, address: SocketAddress, timeout: float) -> tuple[str, str]:
        """Try to connect; return `accepted`, `refused` or `silent`, and the reason."""
        try:
            with socket.socket(address.family, socket.SOCK_STREAM) as sock:
                sock.settimeout(timeout)
                sock.connect(address.sockaddr)
        except ConnectionRefusedError as error:
            return REFUSED, str(error.strerror)
        except TimeoutError:
            return SILENT, f"no answer within {timeout:g} s"
        except OSError as error:
            return SILENT, str(error.strerror or error)
        return ACCEPTED, ""

    def bind(self, port: int) -> str:
        """Whether this process could listen on `port`: `free`, `taken` or `forbidden`.

        Raises:
            OSError: another cause, such as no free descriptors.
        """
        for family, host in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):  # noqa: S104 - closed at once
            try:
                with socket.socket(family, socket.SOCK_STREAM) as sock:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    sock.bind((host, port))
                    sock.listen(1)
                return FREE
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return TAKEN
                if error.errno == errno.EACCES:
                    return FORBIDDEN
                if family == socket.AF_INET:
                    raise
        raise AssertionError  # not reached: the loop always returns or raises

    def owner(self, port: int) -> str:
        """Return the process that listens on `port` of this host; empty if unknown."""
        return port_owner(port)


class NetworkCheck:
    """Checks the interface with this node's address, and connects to the rendezvous.

    Args:
        context: the launch.
        root: where the file system starts; `/` but in tests.
    """

    def __init__(self, context: PluginContext, root: str = "/") -> None:
        settings = context.settings
        self._system = DoctorContext(root=root)
        self._network = Network()
        self._backend = str(settings.get("rdzv_backend", "")).rpartition(":")[2]
        self._is_service = self._backend.startswith("etcd")
        self._endpoint = str(settings.get("rdzv_endpoint", "") or "")
        most, local = settings.get("max_nodes"), settings.get("local_addr")
        self._max_nodes = most if isinstance(most, int) else 1
        self._local_addr = local if isinstance(local, str) else None
        configs = settings.get("rdzv_configs")
        self._is_file = isinstance(configs, dict) and configs.get("store_type") == "file"
        self._deadline = CheckDeadline()

    def check(self, occasion: HealthOccasion) -> Iterator[Finding]:
        """Check the interface, then the endpoint."""
        self._deadline.begin(occasion)
        endpoints = [] if self._is_file else list(self._endpoints())
        host, port = next(((h, p) for h, p in endpoints if p > 0), ("", 0))
        yield self._check_interface(host, port)
        if endpoints:
            yield self._check_endpoint(endpoints, is_restart=occasion.is_restart)

    # --- the interface ----------------------------------------------------------------------------

    def _check_interface(self, host: str, port: int) -> Finding:
        address = find_node_address(
            host, port, max_nodes=self._max_nodes, local_addr=self._local_addr
        )
        with contextlib.suppress(RendezvousConnectionError):  # it may be a name
            found = self._network.resolve(address, 1, self._deadline.remaining)
            address = found[0].host if found else address
        name = self._interface_of(address)
        if not name:
            return Finding(Status.OK, _WHAT, f"no interface has {address}: not checked")
        state = self._system.read(f"/sys/class/net/{name}/operstate")
        # Cannot be read while the interface is down.
        carrier = self._system.read(f"/sys/class/net/{name}/carrier")
        # Interfaces without link state, such as loopback, are "unknown".
        if state in ("down", "lowerlayerdown", "notpresent", "dormant") or carrier == "0":
            why = "has no carrier" if carrier == "0" else f"is {state}"
            return Finding(Status.PROBLEM, _WHAT, f"{name} with {address} {why}", _ADVICE)
        return Finding(Status.OK, _WHAT, f"{name} with {address} is up")

    def _interface_of(self, address: str) -> str:
        """Return the interface that has `address`; empty if none in this namespace has it."""
        with contextlib.suppress(OSError, ValueError):
            for line in self._system.read("/proc/net/if_inet6").splitlines():
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

    # --- the endpoint -----------------------------------------------------------------------------

    def _endpoints(self) -> Iterator[tuple[str, int]]:
        default = _DEFAULT_PORTS.get(self._backend, _NO_PORT)
        for part in filter(None, self._endpoint.split(",")):
            text = part.strip().rpartition("://")[2].rstrip("/")
            with contextlib.suppress(UsageError):  # the backend reports it
                yield parse_rendezvous_endpoint(text, default)

    def _check_endpoint(self, endpoints: list[tuple[str, int]], *, is_restart: bool) -> Finding:
        """Connect to the endpoints. One suffices: several are members of the same service."""
        attempts = [self._connect(host, port) for host, port in endpoints if port > 0]
        if not attempts:
            where = f"{self._endpoint} names no port: not connected to"
            return Finding(Status.OK, _WHAT, where)
        for is_reached, text in attempts:
            if is_reached:
                return Finding(Status.OK, _WHAT, text)
        text = "; ".join(text for _, text in attempts)
        # Nodes start in any order, so the node with the endpoint may start later.
        is_early = not is_restart and not self._is_service
        status = Status.WARNING if is_early else Status.PROBLEM
        return Finding(status, _WHAT, text, _ADVICE)

    def _connect(self, host: str, port: int) -> tuple[bool, str]:
        where = join_host_port(host, port)
        try:
            addresses = self._network.resolve(host, port, self._deadline.remaining / 2)
        except RendezvousConnectionError as error:
            return False, str(error)
        is_hosted = not self._is_service  # by one of the nodes
        if is_hosted and any(map(self._network.is_own, addresses)):
            return True, f"{where} is this node"
        answers = [self._try_address(address, len(addresses)) for address in addresses]
        if any(not answer for answer in answers):
            return True, f"{where} accepts connections"
        if self._backend == "static" and any("refused" in answer for answer in answers):
            return True, f"{where} can be reached; nothing listens there between rounds"
        return False, f"{where} cannot be reached: {'; '.join(answers)}"

    def _try_address(self, address: SocketAddress, number: int) -> str:
        """Connect to `address`, one of `number`; return why that fails, or an empty text."""
        timeout = max(self._deadline.remaining / (number + 1), 0.1)
        answer, reason = self._network.connect(address, timeout)
        if answer == ACCEPTED:
            return ""
        return f"{address} has refused" if answer == REFUSED else f"{address}: {reason}"
