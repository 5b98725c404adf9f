"""The lists in `CUDA_VISIBLE_DEVICES` and its relatives, and the devices that they leave."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from plaunch_devices.kernel import (
    AMD,
    HABANA,
    INTEL,
    LISTERS,
    NVIDIA,
    Device,
    has_slices,
    list_nvidia_files,
    needs_driver,
    needs_torch,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NUMBER = re.compile(r"\s*(\+?\d+)")


def count_visible(mask: str | None, total: int, uuids: Sequence[str] = ()) -> int | None:
    """How many of `total` devices a list leaves; None if that cannot be told from here.

    The rules are the driver's: counting stops at the first entry that names no device (as -1 and
    the empty string do), and a list that repeats an entry leaves none. An entry is an index, or
    the start of a UUID (`GPU-5f2a`), which is checked against `uuids`, if these are known. Slices
    of a GPU (`MIG-...`) are left to the driver.
    """
    chosen = select_visible(mask, total, uuids)
    return None if chosen is None else len(chosen)


def select_visible(mask: str | None, total: int, uuids: Sequence[str] = ()) -> list[int] | None:
    """Which of `total` devices a list leaves, in its order; the rules are `count_visible`'s."""
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
    """The entries of a list up to the first that names no device."""
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


def find_visible_devices(root: str, environ: Mapping[str, str]) -> list[Device] | None:
    """The devices that `environ` leaves visible, device 0 first; None if only torch can tell.

    CUDA's default order, the fastest GPU first, is known only among GPUs of one model; for others
    `CUDA_DEVICE_ORDER` must be `PCI_BUS_ID`. A slice of a GPU (MIG) is found by the older of its
    names, which has the GPU's (`MIG-GPU-<uuid>/1/0`).

    Args:
        root: where the file system starts.
        environ: the environment of the visible-device lists.
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
    root: str, environ: Mapping[str, str], devices: list[Device]
) -> list[Device] | None:
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    if mask == "":
        return []
    if len(devices) != len(list_nvidia_files(root)):
        return None  # the driver describes fewer than there are, as in some containers
    if mask is not None and mask.startswith("MIG-GPU-"):
        uuids = ",".join(entry.strip()[4:].partition("/")[0] for entry in mask.split(","))
        # Several slices may be of one GPU, which a list of GPUs would not be allowed to repeat.
        chosen = [select_devices(uuid, devices) for uuid in uuids.split(",")]
        return [device[0] for device in chosen if device]
    if mask is not None and mask.startswith("GPU-"):
        return select_devices(mask, devices)
    is_ordered = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if has_slices(root) or not (is_ordered or len({device.model for device in devices}) == 1):
        return None
    return select_devices(mask, devices)


def _visible_amd(environ: Mapping[str, str], devices: list[Device]) -> list[Device] | None:
    """ROCR's list comes first; the other one selects from what it leaves."""
    left = select_devices(environ.get("ROCR_VISIBLE_DEVICES"), devices)
    return left and select_devices(environ.get(amd_list(environ)), left)


def amd_list(environ: Mapping[str, str]) -> str:
    """The list that selects from what ROCR's leaves."""
    return "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in environ else "CUDA_VISIBLE_DEVICES"


def _visible_intel(environ: Mapping[str, str], devices: list[Device]) -> list[Device] | None:
    if environ.get("ZE_FLAT_DEVICE_HIERARCHY", "FLAT") != "FLAT":
        # One device for each card; entries of the list may name its tiles, as in 0.1.
        addresses = dict.fromkeys(device.pci_address for device in devices)
        devices = [Device(INTEL, number, address) for number, address in enumerate(addresses)]
    mask = environ.get("ZE_AFFINITY_MASK")
    if not mask:  # an empty list hides nothing from Level Zero
        return devices
    cards = (entry.partition(".")[0] for entry in mask.split(","))
    return select_devices(",".join(dict.fromkeys(cards)), devices)


def select_devices(mask: str | None, devices: Sequence[Device]) -> list[Device] | None:
    """The devices that a list leaves, in its order; None if that cannot be told from here."""
    uuids = [device.uuid.lower() for device in devices]
    if mask is not None and mask.startswith("GPU-"):
        mask = ",".join(
            f"GPU-{entry.strip()[4:].lower()}" if entry.strip().startswith("GPU-") else entry
            for entry in mask.split(",")
        )
        uuids = [f"GPU-{uuid[4:]}" for uuid in uuids if uuid]
    chosen = select_visible(mask, len(devices), uuids if len(uuids) == len(devices) else ())
    return None if chosen is None else [devices[index] for index in chosen]
