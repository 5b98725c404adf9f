"""The locations of devices, and their order in torch."""

from __future__ import annotations

import pytest
from plaunch_devices import find_visible_devices

from helpers.machines import amd_gpus, nvidia_gpu


def nvidia(*gpus):
    """GPUs by PCI address, model and UUID; their minor numbers are in this order."""
    return {name: text for n, gpu in enumerate(gpus) for name, text in nvidia_gpu(n, *gpu).items()}


ALIKE = nvidia(
    ("0000:9d:00.0", "NVIDIA H200", "GPU-99aa-1"),
    ("0001:03:00.0", "NVIDIA H200", "GPU-0103-2"),
    ("0000:1b:00.0", "NVIDIA H200", "GPU-1b1b-3"),
)
MIXED = nvidia(
    ("0000:1b:00.0", "NVIDIA T4", "GPU-1b1b-1"), ("0000:9d:00.0", "NVIDIA H200", "GPU-99aa-2")
)


def addresses(root, environ):
    devices = find_visible_devices(root, environ)
    return None if devices is None else [device.pci_address for device in devices]


@pytest.mark.parametrize(
    ("files", "environ", "expected"),
    [
        (ALIKE, {}, ["0000:1b:00.0", "0000:9d:00.0", "0001:03:00.0"]),
        (ALIKE, {"CUDA_VISIBLE_DEVICES": "2,0"}, ["0001:03:00.0", "0000:1b:00.0"]),
        (ALIKE, {"CUDA_VISIBLE_DEVICES": "1,-1,0"}, ["0000:9d:00.0"]),
        (ALIKE, {"CUDA_VISIBLE_DEVICES": ""}, []),
        (ALIKE, {"CUDA_VISIBLE_DEVICES": "GPU-99,GPU-1b"}, ["0000:9d:00.0", "0000:1b:00.0"]),
        (
            ALIKE,
            {"CUDA_VISIBLE_DEVICES": "MIG-GPU-99aa-1/1/0,MIG-GPU-99aa-1/2/0,MIG-GPU-1b1b-3/1/0"},
            ["0000:9d:00.0", "0000:9d:00.0", "0000:1b:00.0"],
        ),
        (ALIKE, {"CUDA_VISIBLE_DEVICES": "MIG-5f2e"}, None),
        # which of two models is the fastest, only CUDA knows
        (MIXED, {}, None),
        (MIXED, {"CUDA_VISIBLE_DEVICES": "0"}, None),
        (MIXED, {"CUDA_VISIBLE_DEVICES": "GPU-99"}, ["0000:9d:00.0"]),
        (MIXED, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, ["0000:1b:00.0", "0000:9d:00.0"]),
        (MIXED, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, None),
    ],
)
def test_nvidias_are_in_the_order_of_cuda(root, files, environ, expected):
    assert addresses(root(files), environ) == expected


def test_gpus_of_the_host_without_a_device_file_in_this_container_do_not_count(root, tmp_path):
    path = root(ALIKE)
    (tmp_path / "dev/nvidia2").unlink()  # 1b
    assert addresses(path, {}) == ["0000:9d:00.0", "0001:03:00.0"]


@pytest.mark.parametrize(
    "files",
    [
        {"dev/nvidia0": ""},  # the driver describes nothing
        {"dev/dxg": ""},
        {"dev/davinci0": ""},
        ALIKE | {"proc/driver/nvidia/capabilities/gpu0/mig/gi3/access": ""},
    ],
)
def test_devices_that_only_torch_knows_are_not_guessed(root, files):
    assert find_visible_devices(root(files), {}) is None


def test_a_host_without_devices_has_none(root):
    assert find_visible_devices(root({"dev/null": ""}), {}) == []


def test_addresses_of_eight_digits_are_as_in_sysfs(root):
    files = nvidia(("00000000:1B:00.0", "NVIDIA H200", "GPU-1"))
    assert addresses(root(files), {}) == ["0000:1b:00.0"]


AMD = amd_gpus(12)  # more than nine, which are not in the order of their names


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, [f"{n // 8:04x}:{0x10 + n:02x}:00.0" for n in range(12)]),
        ({"HIP_VISIBLE_DEVICES": "9,1"}, ["0001:19:00.0", "0000:11:00.0"]),
        ({"CUDA_VISIBLE_DEVICES": "2"}, ["0000:12:00.0"]),
        ({"CUDA_VISIBLE_DEVICES": "2", "HIP_VISIBLE_DEVICES": "1"}, ["0000:11:00.0"]),
        ({"ROCR_VISIBLE_DEVICES": "3,5", "HIP_VISIBLE_DEVICES": "1"}, ["0000:15:00.0"]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-000000000000ABC2"}, ["0000:12:00.0"]),
    ],
)
def test_amds_are_in_the_order_of_the_kernel(root, environ, expected):
    assert addresses(root(AMD), environ) == expected


def test_with_two_vendors_torch_is_queried(root):
    assert find_visible_devices(root(AMD | ALIKE), {}) is None


def intel(tiles):
    files = {"dev/dri/renderD128": "", "dev/dri/renderD129": ""}
    links = {}
    for number, bus in enumerate(("9a", "29")):
        card = f"sys/devices/pci0000:{bus}/0000:{bus}:00.0"
        files[f"{card}/vendor"] = "0x8086\n"
        for tile in range(tiles):
            files[f"{card}/tile{tile}/gt0/freq"] = ""
        links[f"sys/class/drm/renderD{128 + number}/device"] = card
    return files, links


@pytest.mark.parametrize(
    ("tiles", "environ", "expected"),
    [
        (1, {}, ["29", "9a"]),
        (2, {}, ["29", "29", "9a", "9a"]),
        (2, {"ZE_AFFINITY_MASK": "1,2"}, ["29", "9a"]),
        (2, {"ZE_AFFINITY_MASK": ""}, ["29", "29", "9a", "9a"]),
        (2, {"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}, ["29", "9a"]),
        (2, {"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE", "ZE_AFFINITY_MASK": "1.0,1.1"}, ["9a"]),
    ],
)
def test_intels_are_in_the_order_of_the_bus_by_tile(root, tiles, environ, expected):
    files, links = intel(tiles)
    assert addresses(root(files, links), environ) == [f"0000:{bus}:00.0" for bus in expected]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [({}, ["b4", "33", "19"]), ({"HABANA_VISIBLE_MODULES": "2,0"}, ["19", "b4"])],
)
def test_habanas_are_in_the_order_of_their_modules(root, environ, expected):
    files, links = {"dev/accel/accel0": ""}, {}
    for number, (bus, module) in enumerate((("33", 1), ("b4", 0), ("19", 2))):
        card = f"sys/devices/pci0000:00/0000:{bus}:00.0"
        files |= {f"{card}/vendor": "0x1da3\n", f"{card}/module_id": f"{module}\n"}
        links[f"sys/class/accel/accel{number}/device"] = card
    shown = addresses(root(files, links), environ)
    assert shown == [f"0000:{bus}:00.0" for bus in expected]
