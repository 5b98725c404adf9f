"""The CPUs that this process may use: their number and topology, from sysfs."""

from __future__ import annotations

import glob
import os
import re
from typing import TYPE_CHECKING

from plaunch.process import find_cpu_quota

from plaunch_devices.kernel import read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_CPU = "sys/devices/system/cpu"
_NODE = "sys/devices/system/node"
_OF_DATA = ("Unified", "Data")


def count_cpu(*, root: str = "/", affinity: int | None = None) -> int:
    """Count the CPUs that workers can use, at least 1.

    torchrun uses the number of CPUs of the machine. In a container, or under a scheduler that binds
    jobs to cores, this is less: the minimum of the affinity mask and the CPU quota of the control
    groups (versions 1 and 2), rounded down.

    Args:
        root: the root of the file system.
        affinity: the number of CPUs in the affinity mask; by default that of this process.
    """
    count = len(os.sched_getaffinity(0)) if affinity is None else affinity
    quota = find_cpu_quota(lambda path: read_text(root + path).strip())
    if quota is not None:
        count = min(count, int(quota))
    return max(count, 1)


class Topology:
    """The topology of the CPUs that this process may use.

    If the kernel does not report it, as in some containers, defaults are used: a host without NUMA
    has one node, 0; a CPU of an unknown core is a core of its own; CPUs of unknown caches share
    one.

    Args:
        root: the root of the file system.
        allowed: the CPUs of the affinity mask.
    """

    def __init__(self, root: str, allowed: Iterable[int]) -> None:
        self._root = root
        self.allowed = frozenset(allowed)
        self._nodes = self._read_nodes()

    def nodes(self) -> list[int]:
        """The NUMA nodes with a usable CPU, in order."""
        return sorted(node for node, cpus in self._nodes.items() if cpus & self.allowed)

    def cpus_of(self, node: int) -> frozenset[int]:
        """The usable CPUs of a node."""
        return self._nodes.get(node, frozenset()) & self.allowed

    def node_of_device(self, pci_address: str) -> int | None:
        """The node of a device; None if there is no such device, -1 if the node is unknown."""
        text = self._read(f"sys/bus/pci/devices/{pci_address}/numa_node")
        return int(text) if re.fullmatch(r"-?\d+", text) else None

    def nearest(self, node: int) -> int:
        """This node, or the nearest one with CPUs if it has none.

        A node may have only memory. The kernel reports the distances between nodes.
        """
        if self._nodes.get(node):
            return node
        distances = self._read(f"{_NODE}/node{node}/distance").split()
        numbers = sorted(self._node_numbers())
        known = zip(distances, numbers) if len(distances) == len(numbers) else ()  # noqa: B905
        near = [
            (int(distance), other)
            for distance, other in known
            if distance.isdecimal() and self._nodes.get(other)
        ]
        return min(near)[1] if near else node

    def socket_of(self, node: int) -> list[int]:
        """The nodes on the socket of a node, itself included."""
        package = self._package_of(node)
        if package is None:
            return [node]
        return [other for other in self.nodes() if self._package_of(other) == package]

    def cores_of(self, node: int) -> list[frozenset[int]]:
        """The usable CPUs of a node by core, in the order of the cores."""
        return [cpus for _, cpus in sorted(self._group(node, self._first_sibling).items())]

    def complexes_of(self, node: int) -> list[frozenset[int]]:
        """The usable CPUs of a node by last-level cache; caches with most CPUs come first."""
        groups = self._group(node, self._first_sharing_cache)
        firsts = sorted(groups, key=lambda first: (-len(groups[first]), first))
        return [groups[first] for first in firsts]

    def _group(self, node: int, key: Callable[[int], int]) -> dict[int, frozenset[int]]:
        groups: dict[int, set[int]] = {}
        for cpu in self.cpus_of(node):
            groups.setdefault(key(cpu), set()).add(cpu)
        return {first: frozenset(cpus) for first, cpus in groups.items()}

    def _first_sibling(self, cpu: int) -> int:
        siblings = parse_cpus(self._read(f"{_CPU}/cpu{cpu}/topology/thread_siblings_list"))
        return min(siblings, default=cpu)

    def _first_sharing_cache(self, cpu: int) -> int:
        last = -1
        shared: frozenset[int] = frozenset()
        for number in self._numbers(f"{_CPU}/cpu{cpu}/cache", "index"):
            folder = f"{_CPU}/cpu{cpu}/cache/index{number}"
            level = self._read(f"{folder}/level")
            if self._read(f"{folder}/type") not in _OF_DATA or not level.isdecimal():
                continue
            if int(level) > last:
                last, shared = int(level), parse_cpus(self._read(f"{folder}/shared_cpu_list"))
        return min(shared, default=-1)

    def _package_of(self, node: int) -> int | None:
        cpus = self.cpus_of(node)
        if not cpus:
            return None
        text = self._read(f"{_CPU}/cpu{min(cpus)}/topology/physical_package_id")
        return int(text) if re.fullmatch(r"-?\d+", text) else None

    def _read_nodes(self) -> dict[int, frozenset[int]]:
        numbers = self._node_numbers()
        if not numbers:
            return {0: self.allowed}
        return {
            number: parse_cpus(self._read(f"{_NODE}/node{number}/cpulist")) for number in numbers
        }

    def _node_numbers(self) -> list[int]:
        return self._numbers(_NODE, "node")

    def _numbers(self, folder: str, prefix: str) -> list[int]:
        """The numbers of the folders `<prefix>0`, `<prefix>1`, ..."""
        pattern = os.path.join(glob.escape(self._root), folder, f"{prefix}[0-9]*")
        names = (os.path.basename(path)[len(prefix) :] for path in glob.glob(pattern))
        return sorted(int(name) for name in names if name.isdecimal())

    def _read(self, path: str) -> str:
        return read_text(os.path.join(self._root, path)).strip()


def parse_cpus(text: str) -> frozenset[int]:
    """Parse a list of CPUs in the kernel's format, such as `"0-3,8"`."""
    cpus: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def format_cpus(cpus: Iterable[int]) -> str:
    """Format a list of CPUs as the kernel does: `"0-3,8"`."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][-1] == cpu - 1:
            runs[-1][-1:] = [cpu] if len(runs[-1]) > 1 else [runs[-1][0], cpu]
        else:
            runs.append([cpu])
    return ",".join("-".join(map(str, run)) for run in runs)
