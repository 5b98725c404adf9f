"""Reading `CUDA_VISIBLE_DEVICES` and similar variables, and finding the visible devices."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from plaunch_devices.kernel import (
    AMD,
    HABANA,
    INTEL,
    LISTERS,
    NVIDIA,
    Accelerator,
    has_slices,
    list_nvidia_files,
    needs_driver,
    needs_torch,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NUMBER = re.compile(r"\s*(\+?\d+)")


def count_visible(mask: str | None, total: int, uuids: Sequence[str] = ()) -> int | None:
    """Count the visible devices of `total` for a list; None if unknown.

    The rules are the driver's: the list ends at the first entry that is not a device (such as -1 or
    an empty one), and a list with a repeated entry makes no device visible. An entry is an index,
    or the beginning of a UUID (`GPU-5f2a`), which is checked against `uuids` if these are known.
    For slices of a GPU (`MIG-...`), the result is unknown.
    """
    chosen = select_visible(mask, total, uuids)
    return None if chosen is None else len(chosen)


def select_visible(mask: str | None, total: int, uuids: Sequence[str] = ()) -> list[int] | None:
    """Select the visible devices of `total`, in the order of the list; see `count_visible`."""
    if mask is None:
        return list(range(total))
    entries = mask.split(",")
    if entries[0].startswith("MIG-"):
        return None
    if entries[0].startswith("GPU-"):
        return _select_uuids(entries, uuids) if uuids else None
    chosen: list[int] = []
    for entry in entries:
        number = _NUMBER.match(entry)
        if number is None or int(number.group(1)) >= total:
            break
        chosen.append(int(number.group(1)))
    return _unless_repeated(chosen)


def entries_of(mask: str) -> list[str]:
    """The entries of a list up to the first one that is not a device."""
    entries: list[str] = []
    for entry in map(str.strip, mask.split(",")):
        if not entry or entry.startswith("-"):
            break
        entries.append(entry)
    return entries


def _select_uuids(entries: Sequence[str], uuids: Sequence[str]) -> list[int]:
    chosen: list[int] = []
    for entry in entries:
        matches = [n for n, uuid in enumerate(uuids) if uuid.startswith(entry.strip())]
        if len(matches) != 1 or not entry.strip():
            break
        chosen.append(matches[0])
    return _unless_repeated(chosen)


def _unless_repeated(chosen: list[int]) -> list[int]:
    return chosen if len(set(chosen)) == len(chosen) else []


def find_visible_devices(root: str, environ: Mapping[str, str]) -> list[Accelerator] | None:
    """Find the devices that are visible with `environ`, in torch's order; None if only torch knows.

    CUDA's default order, the fastest GPU first, is known only for GPUs of one model; for others
    `CUDA_DEVICE_ORDER` must be `PCI_BUS_ID`. A slice of a GPU (MIG) is found only by the older form
    of its name, which contains that of the GPU (`MIG-GPU-<uuid>/1/0`).

    Args:
        root: the root of the file system.
        environ: the environment with the lists of visible devices.
    """
    if needs_driver(root):
        return None
    found = {vendor: devices for vendor in LISTERS if (devices := LISTERS[vendor](root))}
    if list_nvidia_files(root):
        found.setdefault(NVIDIA, [])
    if NVIDIA in found:
        return None if AMD in found else _visible_nvidia(root, environ, found[NVIDIA])
    if AMD in found:
        return _visible_amd(environ, found[AMD])
    if INTEL in found:
        return _visible_intel(environ, found[INTEL])
    if HABANA in found:
        return select_devices(environ.get("HABANA_VISIBLE_MODULES"), found[HABANA])
    return None if needs_torch(root) else []


def _visible_nvidia(
    root: str, environ: Mapping[str, str], devices: list[Accelerator]
) -> list[Accelerator] | None:
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    if mask == "":
        return []
    if len(devices) != len(list_nvidia_files(root)):
        return None  # the driver does not describe all devices, as in some containers
    if mask is not None and mask.startswith("MIG-GPU-"):
        uuids = ",".join(entry.strip()[4:].partition("/")[0] for entry in mask.split(","))
        # Several slices may be of one GPU, but a list of GPUs must not repeat one.
        chosen = [select_devices(uuid, devices) for uuid in uuids.split(",")]
        return [device[0] for device in chosen if device]
    if mask is not None and mask.startswith("GPU-"):
        return select_devices(mask, devices)
    is_ordered = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if has_slices(root) or not (is_ordered or len({device.model for device in devices}) == 1):
        return None
    return select_devices(mask, devices)


def _visible_amd(
    environ: Mapping[str, str], devices: list[Accelerator]
) -> list[Accelerator] | None:
    """ROCR's list is applied first; the other one selects from the remaining devices."""
    left = select_devices(environ.get("ROCR_VISIBLE_DEVICES"), devices)
    return left and select_devices(environ.get(amd_list(environ)), left)


def amd_list(environ: Mapping[str, str]) -> str:
    """The variable that selects from the devices that ROCR's leaves."""
    return "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in environ else "CUDA_VISIBLE_DEVICES"


def _visible_intel(
    environ: Mapping[str, str], devices: list[Accelerator]
) -> list[Accelerator] | None:
    if environ.get("ZE_FLAT_DEVICE_HIERARCHY", "FLAT") != "FLAT":
        # One device for each card; entries of the list may name its tiles, as in 0.1.
        addresses = dict.fromkeys(device.pci_address for device in devices)
        devices = [Accelerator(INTEL, number, address) for number, address in enumerate(addresses)]
    mask = environ.get("ZE_AFFINITY_MASK")
    if not mask:  # an empty list hides nothing from Level Zero
        return devices
    cards = (entry.partition(".")[0] for entry in mask.split(","))
    return select_devices(",".join(dict.fromkeys(cards)), devices)


def select_devices(mask: str | None, devices: Sequence[Accelerator]) -> list[Accelerator] | None:
    """Select the devices in a list, in its order; None if unknown."""
    uuids = [device.uuid.lower() for device in devices]
    if mask is not None and mask.startswith("GPU-"):
        mask = ",".join(
            f"GPU-{entry.strip()[4:].lower()}" if entry.strip().startswith("GPU-") else entry
            for entry in mask.split(",")
        )
        uuids = [f"GPU-{uuid[4:]}" for uuid in uuids if uuid]
    chosen = select_visible(mask, len(devices), uuids if len(uuids) == len(devices) else ())
    return None if chosen is None else [devices[index] for index in chosen]
