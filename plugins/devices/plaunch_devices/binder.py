"""The binder: the devices that the workers of a node see, and the CPUs they run on."""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plaunch.errors import UsageError, WorkerStartError
from plaunch.numbers import name_ranks

from plaunch_devices.choice import check_devices, own_visibility, visibility_of
from plaunch_devices.sharing import AffinityMode, NumaOptions, Place, Shares, claims_of, name_device
from plaunch_devices.topology import Topology, format_cpus
from plaunch_devices.visible import find_visible_devices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from plaunch_devices.kernel import Accelerator

_log = logging.getLogger("plaunch")


@dataclass(frozen=True)
class RankBinding:
    """The CPUs and the device of one worker.

    Args:
        local_rank: the local rank of the worker.
        cpus: its CPUs.
        node: its NUMA node.
        device: its device; None if there is none, or it is unknown.
        may_fall_back: whether the worker starts unbound if the kernel refuses the binding.
    """

    local_rank: int
    cpus: frozenset[int]
    node: int
    device: Accelerator | None = None
    may_fall_back: bool = False

    @property
    def cpu_list(self) -> str:
        """The CPUs in the kernel's format: `0-15,32-47`."""
        return format_cpus(self.cpus)

    def describe(self) -> dict[str, str]:
        """The worker's device and CPUs, as text."""
        device = self.device
        found = {} if device is None else {"device": device.pci_address or str(device.index)}
        return {**found, "cpus": self.cpu_list}

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Bind the calling thread until the block ends; workers started in it inherit this.

        Other threads are not affected, and the affinity of the thread is restored.

        Raises:
            WorkerStartError: the kernel refuses, and the worker must not start unbound.
        """
        before = os.sched_getaffinity(0)
        try:
            self.bind(0)
            yield
        finally:
            os.sched_setaffinity(0, before)

    def bind(self, pid: int) -> None:
        """Bind the main thread of a single-threaded process, or the calling thread (0).

        Raises:
            WorkerStartError: the kernel refuses, and the worker must not start unbound.
        """
        try:
            os.sched_setaffinity(pid, self.cpus)
        except OSError as error:
            refused = (
                f"the system does not bind local rank {self.local_rank} to CPUs "
                f"{self.cpu_list}: {error}"
            )
            if not self.may_fall_back:
                raise WorkerStartError(refused) from error
            _log.warning("%s; the worker is started without a binding", refused)


class DeviceBinder:
    """Assigns devices and CPUs to the workers of one node, at each start.

    Worker n uses the n-th visible device; if there are more workers than devices, they share
    devices in turn. Devices are found once; the affinity mask of this process is read at each
    start. On a host without devices, workers are spread evenly over the NUMA nodes.

    Args:
        options: how to bind workers to CPUs; also torch's object of this name, or the value of a
            mode. None for no binding.
        devices: the numbers of the devices to show, among the visible ones; None for all.
        virtual_local_rank: show each worker only its own device, with `LOCAL_RANK` 0 for all.
        environ: the environment with the lists of visible devices; None for that of this process.
        root: the root of the file system.
        locate: asks torch for the locations of devices; called only if the kernel does not know.
        allowed: returns the affinity mask.

    Raises:
        UsageError: the mode is unknown, or a device is not a number.
    """

    def __init__(
        self,
        options: object = None,
        devices: Iterable[object] | None = None,
        virtual_local_rank: bool = False,
        *,
        environ: Mapping[str, str] | None = None,
        root: str = "/",
        locate: Callable[[], list[Accelerator]] | None = None,
        allowed: Callable[[], Iterable[int]] | None = None,
    ) -> None:
        self.options = None if options is None else NumaOptions.of(options)
        self._chosen = None if devices is None else check_devices(devices)
        self._is_virtual = virtual_local_rank
        self._environ = environ
        self._root = root
        self._locate = locate
        self._allowed = allowed or _own_affinity
        self._devices: list[Accelerator] | None = None
        self._logged: set[str] = set()

    def environment(self, local_rank: int, environ: Mapping[str, str]) -> dict[str, str]:
        """The variables for the vendor's software that select a worker's devices.

        Raises:
            UsageError: a device is not visible, or there is none for this worker.
        """
        shown = visibility_of(self._chosen, environ, root=self._root)
        if not self._is_virtual:
            return shown
        own = own_visibility(local_rank, {**environ, **shown}, root=self._root)
        return {**shown, **own, "LOCAL_RANK": "0"}

    def plan(self, nprocs: int) -> dict[int, RankBinding]:
        """Return the binding of each local rank; a new one is logged in one line.

        A rank is missing if it cannot be bound and may start unbound.

        Raises:
            UsageError: a rank cannot be bound, or has no device; the message names the rank, its
                device, and what is missing.
        """
        environ = os.environ if self._environ is None else self._environ
        environ = {**environ, **visibility_of(self._chosen, environ, root=self._root)}
        if self._is_virtual:
            # If there are too few devices, the last worker has none.
            own_visibility(nprocs - 1, environ, root=self._root)
        # The shares depend on all devices, even if each worker sees only its own.
        return {} if self.options is None else self._plan(self.options, nprocs, environ)

    def _plan(
        self, options: NumaOptions, nprocs: int, environ: Mapping[str, str]
    ) -> dict[int, RankBinding]:
        mode, may_fall_back = options.affinity_mode, options.should_fall_back_if_binding_fails
        topology = Topology(self._root, self._allowed())
        places: dict[int, Place] = {}
        device_nodes: list[int | None] = []
        failures: dict[int, UsageError] = {}
        try:
            devices = self._find_devices(topology, environ)
        except UsageError as error:
            failures = dict.fromkeys(range(nprocs), error)
            devices = []
        else:
            device_nodes = [self._node_of(device, topology) for device in devices]
        for rank in range(nprocs if not failures else 0):
            try:
                places[rank] = self._place(rank, nprocs, devices, device_nodes, topology)
            except UsageError as error:
                failures[rank] = error
        shares = Shares(topology, places, claims_of(places, device_nodes, nprocs))
        bindings: dict[int, RankBinding] = {}
        for rank, place in places.items():
            try:
                cpus = shares.of(mode, rank)
            except UsageError as error:
                failures[rank] = error
            else:
                bindings[rank] = RankBinding(rank, cpus, place.node, place.device, may_fall_back)
        self._log_failures(options, failures)
        if bindings:
            self._log_once(_log.info, describe_bindings(mode, bindings.values()))
        return bindings

    def _find_devices(self, topology: Topology, environ: Mapping[str, str]) -> list[Accelerator]:
        if self._devices is not None:
            return self._devices
        devices = find_visible_devices(self._root, environ)
        if devices is None and len(topology.nodes()) == 1:
            return []  # all devices are on this node; not cached, because the mask may change
        self._devices = self._ask_torch(environ) if devices is None else devices
        return self._devices

    def _ask_torch(self, environ: Mapping[str, str]) -> list[Accelerator]:
        if self._locate is not None:
            return self._locate()
        from plaunch_devices.torch_child import locate_with_torch  # last resort

        return locate_with_torch(environ=environ)

    def _node_of(self, device: Accelerator, topology: Topology) -> int | None:
        """The NUMA node of a device; None if unknown."""
        nodes = topology.nodes()
        node = topology.node_of_device(device.pci_address) if device.pci_address else None
        if node is None:
            return nodes[0] if len(nodes) == 1 else None
        if node < 0:
            if len(nodes) > 1:
                self._log_once(
                    _log.warning,
                    f"the system does not know which NUMA node device {device.pci_address} is on; "
                    f"node {nodes[0]} is taken",
                )
            return nodes[0] if nodes else 0
        return topology.nearest(node)

    def _place(
        self,
        rank: int,
        nprocs: int,
        devices: list[Accelerator],
        device_nodes: list[int | None],
        topology: Topology,
    ) -> Place:
        if not devices:
            nodes = topology.nodes()
            if not nodes:
                raise UsageError(
                    f"local rank {rank} has no CPU: no CPU of the affinity mask "
                    f"{format_cpus(topology.allowed)} is on any NUMA node that /sys shows"
                )
            return Place(nodes[rank * len(nodes) // nprocs])
        device, node = devices[rank % len(devices)], device_nodes[rank % len(devices)]
        if node is None:
            raise UsageError(
                f"{name_device(rank, device)} is on an unknown NUMA node: "
                + (
                    f"/sys/bus/pci/devices/{device.pci_address}/numa_node cannot be read"
                    if device.pci_address
                    else "neither the kernel nor torch knows its PCI address"
                )
            )
        return Place(node, device)

    def _log_failures(self, options: NumaOptions, failures: Mapping[int, UsageError]) -> None:
        if not failures:
            return
        mode = options.affinity_mode.value
        if not options.should_fall_back_if_binding_fails:
            first = failures[min(failures)]
            raise UsageError(f"--numa-binding={mode} is not possible: {first}") from first
        for said in dict.fromkeys(map(str, failures.values())):
            ranks = [rank for rank, error in failures.items() if str(error) == said]
            self._log_once(
                _log.warning,
                f"numa-binding {mode}: {name_ranks(ranks)} started without it: {said}",
            )

    def _log_once(self, log: Callable[[str, str], None], line: str) -> None:
        # After a restart, workers usually get the same bindings.
        if line not in self._logged:
            self._logged.add(line)
            log("%s", line)


def create_binder(
    numa_options: object, devices: Iterable[object] | None, virtual_local_rank: bool
) -> DeviceBinder | None:
    """Create the binder for these settings; return None if none of them is given.

    Raises:
        UsageError: a setting is invalid.
    """
    if numa_options is None and devices is None and not virtual_local_rank:
        return None
    return DeviceBinder(numa_options, devices, virtual_local_rank)


def describe_bindings(mode: AffinityMode, bindings: Iterable[RankBinding]) -> str:
    """Describe the bindings in one line; ranks with the same CPUs are grouped."""
    groups: dict[tuple[frozenset[int], int], list[RankBinding]] = {}
    for binding in sorted(bindings, key=lambda binding: binding.local_rank):
        groups.setdefault((binding.cpus, binding.node), []).append(binding)
    parts: list[str] = []
    for (cpus, node), members in groups.items():
        devices = dict.fromkeys(
            member.device.pci_address or f"{member.device.vendor} {member.device.index}".strip()
            for member in members
            if member.device is not None
        )
        word = "device" if len(devices) == 1 else "devices"
        shown = f"{word} {' '.join(devices)}, " if devices else ""
        ranks = name_ranks(member.local_rank for member in members)
        parts.append(f"{ranks} -> CPUs {format_cpus(cpus)} ({shown}node {node})")
    return f"numa-binding {mode.value}: {'; '.join(parts)}"


def _own_affinity() -> set[int]:
    return os.sched_getaffinity(0)
