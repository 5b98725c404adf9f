"""The settings for binding workers, and the division of the CPUs among them.

Names and values of the settings are those of `torch.numa.binding`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from plaunch.errors import UsageError

from plaunch_devices.topology import format_cpus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plaunch_devices.kernel import Accelerator
    from plaunch_devices.topology import Topology


class AffinityMode(str, enum.Enum):
    """The CPUs to which a worker is bound.

    NODE: all CPUs of the NUMA node of the worker's device. SOCKET: the CPUs of all nodes of that
    socket. EXCLUSIVE: a share of the node's cores, which are divided among its devices.
    CORE_COMPLEX: the cores of one last-level cache of the node, in turn.
    """

    NODE = "node"
    SOCKET = "socket"
    EXCLUSIVE = "exclusive"
    CORE_COMPLEX = "core-complex"


@dataclass(frozen=True)
class NumaOptions:
    """How workers are bound to CPUs.

    Args:
        affinity_mode: the mode, or its value.
        should_fall_back_if_binding_fails: start a worker that cannot be bound unbound, with a
            warning, instead of failing.

    Raises:
        UsageError: there is no such mode.
    """

    affinity_mode: AffinityMode
    should_fall_back_if_binding_fails: bool = False

    def __post_init__(self) -> None:
        # It may also be torch's mode, or the value of a mode.
        value = getattr(self.affinity_mode, "value", self.affinity_mode)
        try:
            object.__setattr__(self, "affinity_mode", AffinityMode(value))
        except ValueError:
            raise UsageError(
                f"affinity mode {value!r} is unknown (--numa-binding); choices: "
                f"{', '.join(sorted(mode.value for mode in AffinityMode))}"
            ) from None

    @classmethod
    def of(cls, options: object) -> NumaOptions:
        """Convert an object of this class, of torch's class of this name, or the value of a mode.

        Raises:
            UsageError: it is another object, or has an unknown mode.
        """
        if isinstance(options, cls):
            return options
        if isinstance(options, str):
            return cls(cast("AffinityMode", options))
        mode = getattr(options, "affinity_mode", None)
        if mode is None:
            raise UsageError(
                f"numa_options is {options!r}; give NumaOptions(affinity_mode=AffinityMode.NODE)"
            )
        may_fall_back = getattr(options, "should_fall_back_if_binding_fails", False)
        return cls(mode, bool(may_fall_back))


@dataclass(frozen=True)
class Place:
    """The NUMA node and the device of a worker.

    Args:
        node: the NUMA node.
        device: the device of the worker; None if there is none, or it is unknown.
    """

    node: int
    device: Accelerator | None = None


class Shares:
    """Divides the CPUs of each node among its workers.

    Devices without a worker have a share too, as in torchrun, because another launch may use them.

    Args:
        topology: the CPUs.
        places: the place of each local rank; unknown ones are missing.
        claims: the shares of each node, in order: a local rank, or -1 for an unused device.
    """

    def __init__(
        self, topology: Topology, places: Mapping[int, Place], claims: Mapping[int, Sequence[int]]
    ) -> None:
        self._topology = topology
        self._places = places
        self._claims = claims

    def of(self, mode: AffinityMode, local_rank: int) -> frozenset[int]:
        """The CPUs of one local rank; never empty.

        Raises:
            UsageError: there are none for it.
        """
        node = self._places[local_rank].node
        if not self._topology.cpus_of(node):
            raise UsageError(
                f"{self._where(local_rank)}, and the affinity mask of this process, "
                f"{format_cpus(self._topology.allowed)}, has no CPU of that node; start the "
                "launcher with CPUs of all nodes that have devices"
            )
        if mode is AffinityMode.SOCKET:
            nodes = self._topology.socket_of(node)
            return frozenset().union(*map(self._topology.cpus_of, nodes))
        if mode is AffinityMode.EXCLUSIVE:
            return self._exclusive(node, local_rank)
        if mode is AffinityMode.CORE_COMPLEX:
            complexes = self._topology.complexes_of(node)
            return complexes[self._claims[node].index(local_rank) % len(complexes)]
        return self._topology.cpus_of(node)

    def _exclusive(self, node: int, local_rank: int) -> frozenset[int]:
        cores = self._topology.cores_of(node)
        claims = self._claims[node]
        if len(cores) < len(claims):
            claims = [rank for rank in claims if rank >= 0]
        if len(cores) < len(claims):
            raise UsageError(
                f"{self._where(local_rank)}, which has {len(cores)} core(s) in the affinity mask "
                f"for {len(claims)} workers; use the mode 'node', in which workers share cores, or "
                "start fewer workers"
            )
        position = claims.index(local_rank)
        size, rest = divmod(len(cores), len(claims))
        # The first ones get one of the remaining cores each.
        begin = position * size + min(position, rest)
        end = begin + size + (position < rest)
        return frozenset().union(*cores[begin:end])

    def _where(self, local_rank: int) -> str:
        place = self._places[local_rank]
        if place.device is None:
            return f"local rank {local_rank} belongs on NUMA node {place.node}"
        return f"{name_device(local_rank, place.device)} is on NUMA node {place.node}"


def name_device(local_rank: int, device: Accelerator) -> str:
    """Name the device of a worker in words."""
    vendor = f"{device.vendor} " if device.vendor else ""
    address = device.pci_address or "no known PCI address"
    return f"local rank {local_rank}'s device, {vendor}{device.index} ({address}),"


def claims_of(
    places: Mapping[int, Place], device_nodes: Sequence[int | None], nprocs: int
) -> dict[int, list[int]]:
    """The shares of each node, by device, and by local rank if several ranks use one device.

    Args:
        places: the place of each local rank.
        device_nodes: the node of each visible device, in order; None if unknown.
        nprocs: the number of workers; they use the devices in turn.
    """
    claims: dict[int, list[int]] = {}
    if not device_nodes:
        for rank, place in sorted(places.items()):
            claims.setdefault(place.node, []).append(rank)
        return claims
    for number, node in enumerate(device_nodes):
        if node is not None:
            ranks = list(range(number, nprocs, len(device_nodes)))
            claims.setdefault(node, []).extend(ranks or [-1])
    return claims
