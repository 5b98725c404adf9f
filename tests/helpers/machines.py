"""Machines simulated by files, as the kernel and device drivers show them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from plaunch_devices.topology import format_cpus, parse_cpus

KFD_NODES = "sys/class/kfd/kfd/topology/nodes"


def nvidia_gpu(minor, address, model, uuid):
    """Return the files of an NVIDIA GPU."""
    return {
        f"dev/nvidia{minor}": "",
        f"proc/driver/nvidia/gpus/{address}/information": (
            f"Model: \t\t {model}\nIRQ:   \t\t 12\nGPU UUID: \t {uuid}\n"
            f"Bus Location: \t {address}\nDevice Minor: \t {minor}\n"
        ),
    }


def amd_gpus(count):
    """Return the files of a machine with two processors and `count` AMD GPUs."""
    files = {"dev/kfd": ""}
    for n in range(2):
        files[f"{KFD_NODES}/{n}/properties"] = (
            "cpu_cores_count 64\nsimd_count 0\ndrm_render_minor 0\n"
        )
    for n in range(count):
        files[f"{KFD_NODES}/{n + 2}/properties"] = (
            f"cpu_cores_count 0\nsimd_count 304\ndrm_render_minor {128 + n}\n"
            f"location_id {(0x10 + n) << 8}\ndomain {n // 8}\nunique_id {0xABC0 + n}\n"
        )
        files[f"dev/dri/renderD{128 + n}"] = ""
    return files


@dataclass
class Machine:
    """The description of a machine; lists of CPUs are as in sysfs.

    `nodes` maps a NUMA node to its CPUs, `siblings` and `caches` are groups of CPUs, `packages`
    maps a socket to its CPUs, and `gpus` are PCI addresses with the node that sysfs has for each.
    """

    nodes: dict[int, str]
    packages: dict[int, str]
    siblings: list[str] = field(default_factory=list)
    caches: list[str] = field(default_factory=list)
    gpus: dict[str, int] = field(default_factory=dict)
    distances: dict[int, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    def write(self, root):
        files = {}
        possible = format_cpus(self.nodes)
        files["sys/devices/system/node/possible"] = possible
        for node, cpus in self.nodes.items():
            files[f"sys/devices/system/node/node{node}/cpulist"] = cpus
        for node, distances in self.distances.items():
            files[f"sys/devices/system/node/node{node}/distance"] = distances
        siblings, caches = by_cpu(self.siblings), by_cpu(self.caches)
        for package, cpus in self.packages.items():
            for cpu in parse_cpus(cpus):
                folder = f"sys/devices/system/cpu/cpu{cpu}"
                files[f"{folder}/topology/physical_package_id"] = str(package)
                own, shared = siblings.get(cpu, str(cpu)), caches.get(cpu, str(cpu))
                files[f"{folder}/topology/thread_siblings_list"] = own
                levels = [("Data", 1, own), ("Instruction", 1, own), ("Unified", 2, own)]
                levels += [("Unified", 3, shared)] if self.caches else []
                for number, (kind, level, cpus_of_cache) in enumerate(levels):
                    cache = f"{folder}/cache/index{number}"
                    files[f"{cache}/type"] = kind
                    files[f"{cache}/level"] = str(level)
                    files[f"{cache}/shared_cpu_list"] = cpus_of_cache
        for number, (address, node) in enumerate(self.gpus.items()):
            files |= nvidia_gpu(number, address, "NVIDIA H200", f"GPU-{number:04x}")
            files[f"sys/bus/pci/devices/{address}/numa_node"] = str(node)
        kept = {n: text for n, text in files.items() if not any(w in n for w in self.missing)}
        for folder in {name.rpartition("/")[0] for name in kept}:
            os.makedirs(os.path.join(root, folder), exist_ok=True)
        for name, content in kept.items():
            with open(os.path.join(root, name), "w") as file:
                file.write(content + "\n")
        return str(root)

    def all_cpus(self):
        return {cpu for cpus in self.packages.values() for cpu in parse_cpus(cpus)}


def by_cpu(groups):
    """The group of each CPU that is in one."""
    return {cpu: group for group in groups for cpu in parse_cpus(group)}
