"""The doctor's checks of devices."""

from __future__ import annotations

import pytest
from plaunch.doctor import DoctorContext, Status
from plaunch_devices.doctor import check_accelerators

OK, WARNING, PROBLEM = Status.OK, Status.WARNING, Status.PROBLEM


def check(root, environ=None, nproc=1):
    """The one finding about the devices of a node."""
    context = DoctorContext(settings={"nproc_per_node": nproc}, environ=environ or {}, root=root)
    (found,) = check_accelerators(context)
    return found


VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024"


@pytest.mark.parametrize(
    ("files", "environ", "nproc", "said", "status"),
    [
        ((), {}, 8, "no NVIDIA or AMD GPU", OK),
        (("nvidia0", "nvidia1", "nvidiactl"), {}, 2, "driver 550.54.15, 2 device(s) in /dev", OK),
        (("nvidiactl",), {}, 1, "0 device(s)", PROBLEM),
        (("nvidia0",), {}, 1, "no /dev/nvidiactl", PROBLEM),
        (("nvidia0", "nvidiactl"), {}, 2, "2 workers share 1", WARNING),
        (("nvidia0", "nvidiactl"), {"CUDA_VISIBLE_DEVICES": "0,1"}, 1, "=0,1", PROBLEM),
        (("nvidia0", "nvidiactl"), {"CUDA_VISIBLE_DEVICES": ""}, 1, "share 0", WARNING),
        (("nvidia0", "nvidiactl"), {"CUDA_VISIBLE_DEVICES": "GPU-5f2a"}, 1, "GPU-5f2a", OK),
    ],
)
def test_nvidia_devices(root, files, environ, nproc, said, status):
    driver = {"proc/driver/nvidia/version": VERSION} if files else {}
    path = root({**driver, **{f"dev/{name}": "" for name in files}})
    found = check(path, environ, nproc)
    assert found.status is status
    assert said in found.found


def test_a_container_may_have_some_of_the_machines_devices(root):
    gpus = {f"proc/driver/nvidia/gpus/0000:0{index}:00.0/information": "" for index in range(4)}
    driver = {"proc/driver/nvidia/version": VERSION, "dev/nvidia2": "", "dev/nvidiactl": ""}
    found = check(root({**gpus, **driver}))
    assert (found.status, "1 device(s) in /dev of 4" in found.found) == (OK, True)


def test_a_gpu_without_its_driver_is_found(root):
    gpu = "sys/bus/pci/devices/0000:01:00.0"
    assert (
        check(root({f"{gpu}/vendor": "0x10de\n", f"{gpu}/class": "0x030200\n"})).status is WARNING
    )


@pytest.mark.parametrize(("files", "status"), [((), PROBLEM), (("dev/dri/renderD128",), OK)])
def test_amd_devices(root, files, status):
    assert check(root(["dev/kfd", *files])).status is status
