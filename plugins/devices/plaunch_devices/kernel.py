"""Listing accelerators from the kernel's files in /dev, /proc and /sys."""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

NVIDIA = "NVIDIA"
AMD = "AMD"
INTEL = "Intel"
HABANA = "Habana"

_INTEL_ID = "0x8086"
_HABANA_ID = "0x1da3"

# With one of these, only the driver knows the devices: WSL, and NVIDIA's Tegra boards.
_OPAQUE = ("dev/dxg", "dev/nvgpu", "dev/nvhost-gpu", "dev/nvhost-ctrl-gpu")

# Accelerators whose torch package registers itself when torch is imported.
_OTHERS = ("accel/accel[0-9]*", "cambricon_dev[0-9]*", "davinci[0-9]*", "neuron[0-9]*")

_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)


@dataclass(frozen=True)
class Accelerator:
    """One accelerator.

    Args:
        vendor: the vendor's name; empty if torch found the device.
        index: its number among all devices of the vendor, in the order of the vendor's runtime.
        pci_address: the address as in sysfs (`0000:1b:00.0`); empty if unknown.
        uuid: the vendor's unique name of the device (`GPU-5f2a...`); empty if unknown.
        model: the vendor's name of the product; empty if unknown.
    """

    vendor: str
    index: int
    pci_address: str = ""
    uuid: str = ""
    model: str = ""


def read_text(path: str) -> str:
    """Read a file of the kernel; return an empty text if that is not possible."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def needs_driver(root: str) -> bool:
    """Whether only the GPU driver of this machine knows its devices."""
    return any(os.path.exists(os.path.join(root, path)) for path in _OPAQUE)


def needs_torch(root: str) -> bool:
    """Whether there is an accelerator that only an extension of torch knows."""
    dev = os.path.join(glob.escape(root), "dev")
    return any(glob.glob(os.path.join(dev, pattern)) for pattern in _OTHERS)


def has_slices(root: str) -> bool:
    """Whether an NVIDIA GPU is divided into slices (MIG), which do not count as one device."""
    pattern = "proc/driver/nvidia/capabilities/gpu[0-9]*/mig/gi[0-9]*"
    return bool(glob.glob(os.path.join(glob.escape(root), pattern)))


def list_nvidia_files(root: str) -> list[str]:
    """The device files of NVIDIA's GPUs."""
    return _list(root, "dev/nvidia[0-9]*", r"nvidia\d+")


def list_nvidia(root: str) -> list[Accelerator]:
    """NVIDIA's GPUs as described by their driver, in the order of their PCI addresses.

    This is CUDA's order with `CUDA_DEVICE_ORDER=PCI_BUS_ID`. By default, CUDA's order begins with
    the fastest GPU, which makes no difference among GPUs of one model.
    """
    found: list[Accelerator] = []
    paths = _list(root, "proc/driver/nvidia/gpus/*/information", "information")
    for path in sorted(paths, key=lambda path: _bus_order(_folder(path))):
        text = read_text(path)
        minor = _field(text, "Device Minor")
        # In a container, the driver may describe GPUs without a device file there.
        if minor and not os.path.exists(os.path.join(root, "dev", f"nvidia{minor}")):
            continue
        uuid = _field(text, "GPU UUID")
        found.append(
            Accelerator(
                vendor=NVIDIA,
                index=len(found),
                pci_address=_address(_folder(path)),
                uuid=uuid if re.fullmatch(r"GPU-[0-9a-f-]+", uuid) else "",
                model=_field(text, "Model"),
            )
        )
    return found


def list_amd(root: str) -> list[Accelerator]:
    """AMD's GPUs whose render device is in /dev (in this container), in the kernel's order."""
    if not os.path.exists(os.path.join(root, "dev/kfd")):
        return []
    found: list[Accelerator] = []
    paths = _list(root, "sys/class/kfd/kfd/topology/nodes/*/properties", "properties")
    for path in sorted(paths, key=lambda path: _number(_folder(path))):
        properties = dict(re.findall(r"^(\w+) (\d+)$", read_text(path), re.MULTILINE))
        render = properties.get("drm_render_minor", "0")
        if int(properties.get("simd_count", 0)) == 0:  # a CPU
            continue
        if render != "0" and not os.path.exists(os.path.join(root, f"dev/dri/renderD{render}")):
            continue
        address = ""
        if "location_id" in properties:
            location = int(properties["location_id"])
            address = (
                f"{int(properties.get('domain', 0)):04x}:{location >> 8 & 0xFF:02x}:"
                f"{location >> 3 & 0x1F:02x}.{location & 0x7:x}"
            )
        unique_id = int(properties.get("unique_id", 0))
        uuid = f"GPU-{unique_id:016x}" if unique_id else ""
        found.append(Accelerator(AMD, len(found), address, uuid))
    return found


def list_intel(root: str) -> list[Accelerator]:
    """Intel's GPUs, in the order of their PCI addresses.

    A card with several tiles is listed once for each tile, as in Level Zero's `FLAT` hierarchy, the
    default.
    """
    paths = _list(root, "sys/class/drm/renderD*/device/vendor", "vendor")
    if glob.glob(os.path.join(glob.escape(root), "dev/dri/renderD*")):  # those of this container
        paths = [path for path in paths if os.path.exists(_render_file(root, path))]
    folders = {
        os.path.realpath(os.path.dirname(path))
        for path in paths
        if read_text(path).strip() == _INTEL_ID
    }
    found: list[Accelerator] = []
    for folder in sorted(folders, key=lambda folder: _bus_order(os.path.basename(folder))):
        tiles = len(glob.glob(os.path.join(glob.escape(folder), "tile[0-9]*")))
        address = _pci_address_of(folder)
        found += [Accelerator(INTEL, len(found) + tile, address) for tile in range(max(tiles, 1))]
    return found


def has_intel_gpu(root: str) -> bool:
    """Whether there may be an Intel GPU that computes."""
    return os.path.exists(os.path.join(root, "dev/dxg")) or bool(list_intel(root))


def list_habana(root: str) -> list[Accelerator]:
    """Habana's accelerators, in the order of their modules, as in the vendor's software."""
    paths = _list(root, "sys/class/accel/accel*/device/vendor", "vendor")
    folders = [os.path.dirname(path) for path in paths if read_text(path).strip() == _HABANA_ID]

    def order(folder: str) -> tuple[int, int]:
        module = read_text(os.path.join(folder, "module_id")).strip()
        number = _number(_folder(folder).removeprefix("accel"))
        return (int(module) if module.isdecimal() else number, number)

    return [
        Accelerator(HABANA, index, _pci_address_of(folder))
        for index, folder in enumerate(sorted(folders, key=order))
    ]


LISTERS: dict[str, Callable[[str], list[Accelerator]]] = {
    NVIDIA: list_nvidia,
    AMD: list_amd,
    INTEL: list_intel,
    HABANA: list_habana,
}


def _render_file(root: str, path: str) -> str:
    """The device file of a path in /sys/class/drm/renderD128/device."""
    return os.path.join(root, "dev/dri", _folder(os.path.dirname(path)))


def _pci_address_of(folder: str) -> str:
    """The PCI address that a `device` link leads to; empty for other devices."""
    return _address(os.path.basename(os.path.realpath(folder)))


def _address(text: str) -> str:
    return _short(text.lower()) if _PCI_ADDRESS.fullmatch(text) else ""


def _short(address: str) -> str:
    """Shorten the domain to four digits, as in sysfs; NVIDIA's driver may write eight."""
    domain, _, rest = address.partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _bus_order(address: str) -> tuple[int, str]:
    domain, _, rest = address.lower().partition(":")
    try:
        return int(domain, 16), rest
    except ValueError:
        return -1, rest


def _field(text: str, name: str) -> str:
    match = re.search(rf"^{re.escape(name)}:[ \t]*(\S.*?)\s*$", text, re.MULTILINE)
    return match.group(1) if match else ""


def _folder(path: str) -> str:
    """The name of the folder that a file is in."""
    return os.path.basename(os.path.dirname(path))


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else -1


def _list(root: str, pattern: str, name: str) -> list[str]:
    """The paths that match `pattern` and whose last part is `name`, a regular expression."""
    paths = glob.glob(os.path.join(glob.escape(root), pattern))
    return [path for path in sorted(paths) if re.fullmatch(name, os.path.basename(path))]
