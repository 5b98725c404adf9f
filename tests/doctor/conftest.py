"""A simulated node: its files, network and limits."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

import pytest
from plaunch.doctor import Status
from plaunch.errors import RendezvousConnectionError
from plaunch_doctor.context import NodeContext
from plaunch_doctor.machine import UNLIMITED, Machine, Space
from plaunch_doctor.network import FREE, SILENT, Network
from plaunch_network.address import SocketAddress

from helpers.gates import gate  # noqa: F401 - a fixture
from helpers.site import own_metadata, site  # noqa: F401 - fixtures


@dataclass
class FakeNetwork(Network):
    """Names, addresses and ports that a test sets."""

    hosts: dict[str, list[str]] = field(default_factory=lambda: {"node7": ["10.0.0.7"]})
    names: dict[str, list[str]] = field(default_factory=lambda: {"10.0.0.7": ["node7.example"]})
    own: tuple[str, ...] = ("10.0.0.7", "127.0.0.1", "127.0.1.1")
    answers: dict[str, str] = field(default_factory=dict)
    ports: dict[int, str] = field(default_factory=dict)
    tried: list[int] = field(default_factory=list)

    def resolve(self, host, port, timeout):
        if host[0].isdigit() or ":" in host:
            numbers = [host]
        elif host in self.hosts:
            numbers = self.hosts[host]
        else:
            raise RendezvousConnectionError(f"host {host!r} has no address here")
        return tuple(
            SocketAddress(socket.AF_INET6 if ":" in number else socket.AF_INET, (number, port))
            for number in numbers
        )

    def names_of(self, address, timeout):
        return self.names.get(address, [])

    def is_own(self, address):
        return address.host in self.own

    def connect(self, address, timeout):
        return self.answers.get(str(address), SILENT), "said by the test"

    def bind(self, port):
        self.tried.append(port)
        return self.ports.get(port, FREE)

    def owner(self, port):
        return "pid 12 (python)"


@dataclass
class FakeMachine(Machine):
    """Limits, disks, programs and time that a test sets."""

    python: str = "/venv/bin/python"
    prefix: str = "/venv"
    base_prefix: str = "/usr"
    version: tuple[int, int, int] = (3, 11, 4)
    user: int = 1000
    limits: dict[str, tuple[int, int]] = field(default_factory=dict)
    cores: int = 8
    spaces: dict[str, Space] = field(default_factory=dict)
    writable: bool = True
    programs: dict[str, str] = field(default_factory=dict)
    time: float = 1_800_000_000.0
    synchronised: bool | None = True
    packages: dict[str, tuple[str, str]] = field(default_factory=dict)

    def limit(self, name):
        return self.limits.get(name, (UNLIMITED, UNLIMITED))

    def processors(self):
        return self.cores

    def space(self, path):
        for end, space in self.spaces.items():
            if path.endswith(end):
                return space
        return Space(1 << 40, 1 << 40)

    def is_writable(self, folder):
        return self.writable

    def which(self, program, environ):
        return self.programs.get(program, "")

    def now(self):
        return self.time

    def is_synchronised(self):
        return self.synchronised

    def distribution(self, name):
        return self.packages.get(name)


class Node:
    """Runs one check on a simulated node."""

    def __init__(self, root) -> None:
        self.root = root
        self.network = FakeNetwork()
        self.machine = FakeMachine()

    def write(self, path: str, text: str = "") -> None:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def check(self, check, *, settings=None, options=None, environ=None, host="node7", **more):
        context = NodeContext(
            settings=settings or {},
            options=options or {},
            environ=environ or {},
            host=host,
            root=str(self.root),
            network=self.network,
            machine=self.machine,
            **more,
        )
        return list(check(context))

    def only(self, check, what=None, **given):
        """Return the only finding, or the one with this heading; problems must have advice."""
        (finding,) = [one for one in self.check(check, **given) if what in (None, one.what)]
        assert bool(finding.advice) == (finding.status is not Status.OK), finding
        return finding

    def check_says(self, status, said, check, what=None, **given):
        """Assert the text of the only finding."""
        finding = self.only(check, what, **given)
        assert finding.status is status
        assert said in finding.found


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)
