"""The devices that a worker can see, in the order in which torch numbers them."""

from __future__ import annotations

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
from plaunch_devices.visible import select_visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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
        return _select(environ.get("HABANA_VISIBLE_MODULES"), found[HABANA])
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
        chosen = [_select(uuid, devices) for uuid in uuids.split(",")]
        return [device[0] for device in chosen if device]
    if mask is not None and mask.startswith("GPU-"):
        return _select(mask, devices)
    is_ordered = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if has_slices(root) or not (is_ordered or len({device.model for device in devices}) == 1):
        return None
    return _select(mask, devices)


def _visible_amd(environ: Mapping[str, str], devices: list[Device]) -> list[Device] | None:
    """ROCR's list comes first; the other one selects from what it leaves."""
    left = _select(environ.get("ROCR_VISIBLE_DEVICES"), devices)
    if left is None:
        return None
    own = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in environ else "CUDA_VISIBLE_DEVICES"
    return _select(environ.get(own), left)


def _visible_intel(environ: Mapping[str, str], devices: list[Device]) -> list[Device] | None:
    if environ.get("ZE_FLAT_DEVICE_HIERARCHY", "FLAT") != "FLAT":
        # One device for each card; entries of the list may name its tiles, as in 0.1.
        addresses = dict.fromkeys(device.pci_address for device in devices)
        devices = [Device(INTEL, number, address) for number, address in enumerate(addresses)]
    mask = environ.get("ZE_AFFINITY_MASK")
    if not mask:  # an empty list hides nothing from Level Zero
        return devices
    cards = (entry.partition(".")[0] for entry in mask.split(","))
    return _select(",".join(dict.fromkeys(cards)), devices)


def _select(mask: str | None, devices: Sequence[Device]) -> list[Device] | None:
    uuids = [device.uuid.lower() for device in devices]
    if mask is not None and mask.startswith("GPU-"):
        mask = ",".join(
            f"GPU-{entry.strip()[4:].lower()}" if entry.strip().startswith("GPU-") else entry
            for entry in mask.split(",")
        )
        uuids = [f"GPU-{uuid[4:]}" for uuid in uuids if uuid]
    chosen = select_visible(mask, len(devices), uuids if len(uuids) == len(devices) else ())
    return None if chosen is None else [devices[index] for index in chosen]
