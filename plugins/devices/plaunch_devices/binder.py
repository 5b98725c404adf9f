"""The binder: which devices the workers of a node see, and which processors they run on."""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plaunch.errors import UsageError, WorkerStartError
from plaunch.numbers import name_ranks

from plaunch_devices.choice import check_devices, own_visibility, visibility_of
from plaunch_devices.numa import AffinityMode, NumaOptions
from plaunch_devices.sharing import Place, Shares, claims_of, name_device
from plaunch_devices.topology import Topology, format_cpus
from plaunch_devices.visible import find_visible_devices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from plaunch_devices.kernel import Device

_log = logging.getLogger("plaunch")


@dataclass(frozen=True)
class RankBinding:
    """The processors and the device of one worker.

    Args:
        local_rank: the worker's.
        cpus: the processors.
        node: the NUMA node that the worker belongs on.
        device: the worker's device; None if there is none, or it is unknown.
        may_fall_back: whether the worker starts without being bound if the kernel refuses.
    """

    local_rank: int
    cpus: frozenset[int]
    node: int
    device: Device | None = None
    may_fall_back: bool = False

    @property
    def cpu_list(self) -> str:
        """The processors as the kernel writes them: `0-15,32-47`."""
        return format_cpus(self.cpus)

    def describe(self) -> dict[str, str]:
        """The worker's device and its processors."""
        device = self.device
        found = {} if device is None else {"device": device.pci_address or str(device.index)}
        return {**found, "cpus": self.cpu_list}

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Bind the calling thread while the worker is being started, which inherits it.

        Other threads are not touched, and the thread gets its own affinity back.

        Raises:
            WorkerStartError: the kernel refuses, and the worker must not start without it.
        """
        before = os.sched_getaffinity(0)
        try:
            self.bind(0)
            yield
        finally:
            os.sched_setaffinity(0, before)

    def bind(self, pid: int) -> None:
        """Bind the main thread of a process that has started none yet, or this thread (0).

        Raises:
            WorkerStartError: the kernel refuses, and the worker must not start without it.
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
    """Gives the workers of one node their devices and processors, as often as they are started.

    Worker n uses device n of those that are visible, and after the last the first again. Devices
    are looked up once; the affinity mask of this process is respected as it is at each start. On a
    host without devices, workers are spread evenly over the NUMA nodes.

    Args:
        options: how workers are bound to processors; also torch's object of the name, or a mode's
            value. None leaves them.
        devices: the numbers of the devices that they see, among those that are visible already;
            None for all.
        virtual_local_rank: show each worker its own device only, with `LOCAL_RANK` 0 for all.
        environ: where the lists of visible devices are; None is this process's environment.
        root: where the file system starts.
        locate: asks torch where devices are; only where the kernel cannot tell.
        allowed: the affinity mask.

    Raises:
        UsageError: there is no such mode, a device is not a number, or this system cannot bind
            processes.
    """

    def __init__(
        self,
        options: object = None,
        devices: Iterable[object] | None = None,
        virtual_local_rank: bool = False,
        *,
        environ: Mapping[str, str] | None = None,
        root: str = "/",
        locate: Callable[[], list[Device]] | None = None,
        allowed: Callable[[], Iterable[int]] | None = None,
    ) -> None:
        self.options = None if options is None else NumaOptions.of(options)
        self._chosen = None if devices is None else check_devices(devices)
        self._is_virtual = virtual_local_rank
        self._environ = environ
        self._root = root
        self._locate = locate
        if allowed is None and options is not None and not hasattr(os, "sched_getaffinity"):
            raise UsageError("this system cannot bind processes to CPUs (--numa-binding)")
        self._allowed = allowed or _own_affinity
        self._devices: list[Device] | None = None
        self._told: set[str] = set()

    def environment(self, local_rank: int, environ: Mapping[str, str]) -> dict[str, str]:
        """The variables that show a worker its devices, as the vendor's software reads them.

        Raises:
            UsageError: a device is not visible, or there is none for this worker.
        """
        shown = visibility_of(self._chosen, environ, root=self._root)
        if not self._is_virtual:
            return shown
        own = own_visibility(local_rank, {**environ, **shown}, root=self._root)
        return {**shown, **own, "LOCAL_RANK": "0"}

    def plan(self, nprocs: int) -> dict[int, RankBinding]:
        """The binding of each local rank; logs it in one line, if it is new.

        A rank is missing if it cannot be bound and need not be.

        Raises:
            UsageError: a rank cannot be bound, or cannot have its device; the message names it, its
                device, and what is missing.
        """
        environ = os.environ if self._environ is None else self._environ
        environ = {**environ, **visibility_of(self._chosen, environ, root=self._root)}
        if self._is_virtual:
            # The last one has no device if there are too few.
            own_visibility(nprocs - 1, environ, root=self._root)
        # What they share depends on all devices, though each may see its own only.
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
        self._tell_failures(options, failures)
        if bindings:
            self._tell(_log.info, describe_bindings(mode, bindings.values()))
        return bindings

    def _find_devices(self, topology: Topology, environ: Mapping[str, str]) -> list[Device]:
        if self._devices is not None:
            return self._devices
        devices = find_visible_devices(self._root, environ)
        if devices is None and len(topology.nodes()) == 1:
            return []  # wherever they are, it is on this node; not kept, for the mask may change
        self._devices = self._ask_torch(environ) if devices is None else devices
        return self._devices

    def _ask_torch(self, environ: Mapping[str, str]) -> list[Device]:
        if self._locate is not None:
            return self._locate()
        from plaunch_devices.torch_child import locate_with_torch  # last resort

        return locate_with_torch(environ=environ)

    def _node_of(self, device: Device, topology: Topology) -> int | None:
        """The NUMA node of a device; None if it cannot be known."""
        nodes = topology.nodes()
        node = topology.node_of_device(device.pci_address) if device.pci_address else None
        if node is None:
            return nodes[0] if len(nodes) == 1 else None
        if node < 0:
            if len(nodes) > 1:
                self._tell(
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
        devices: list[Device],
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

    def _tell_failures(self, options: NumaOptions, failures: Mapping[int, UsageError]) -> None:
        if not failures:
            return
        mode = options.affinity_mode.value
        if not options.should_fall_back_if_binding_fails:
            first = failures[min(failures)]
            raise UsageError(f"--numa-binding={mode} is not possible: {first}") from first
        for said in dict.fromkeys(map(str, failures.values())):
            ranks = [rank for rank, error in failures.items() if str(error) == said]
            self._tell(
                _log.warning,
                f"numa-binding {mode}: {name_ranks(ranks)} started without it: {said}",
            )

    def _tell(self, log: Callable[[str, str], None], line: str) -> None:
        # Workers that are started again are bound to the same, as a rule.
        if line not in self._told:
            self._told.add(line)
            log("%s", line)


def create_binder(
    numa_options: object, devices: Iterable[object] | None, virtual_local_rank: bool
) -> DeviceBinder | None:
    """The binder for these settings of a launch or of a `WorkerSpec`; None if nothing is asked for.

    Raises:
        UsageError: a setting cannot be used.
    """
    if numa_options is None and devices is None and not virtual_local_rank:
        return None
    return DeviceBinder(numa_options, devices, virtual_local_rank)


def describe_bindings(mode: AffinityMode, bindings: Iterable[RankBinding]) -> str:
    """One line that says what each local rank is bound to; ranks of the same CPUs are together."""
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
