from __future__ import annotations

import os

import pytest
from plaunch.errors import UsageError
from plaunch_devices import TorchMissingError, count_auto, count_gpu, count_visible, count_xpu

from helpers.machines import amd_gpus, nvidia_gpu
from helpers.programs import run_python


class Torch:
    """Answers as torch would, and records its calls."""

    def __init__(self, answer=None):
        self.answer = answer
        self.asked = []

    def __call__(self, module):
        self.asked.append(module)
        if self.answer is None:
            raise AssertionError(f"torch.{module} was asked")
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def nvidia(count, uuids=()):
    """The files of a machine with `count` NVIDIA GPUs."""
    files = {f"dev/nvidia{n}": "" for n in range(count)}
    files |= {"dev/nvidiactl": "", "dev/nvidia-uvm": "", "dev/nvidia-caps/nvidia-cap1": ""}
    for n, uuid in enumerate(uuids):
        files |= nvidia_gpu(n, f"0000:0{n}:00.0", "NVIDIA H200", uuid)
    return files


MIG = {"proc/driver/nvidia/capabilities/gpu0/mig/gi3/access": ""}
INTEL = {"sys/class/drm/renderD128/device/vendor": "0x8086\n"}


# --- lists of visible devices ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (None, 4),
        ("", 0),
        (" ", 0),
        ("-1", 0),
        ("none", 0),
        ("NoDevFiles", 0),
        ("0", 1),
        ("3,1,0", 3),
        (" 0 , 2 ", 2),
        ("0,1,2,3", 4),
        ("0,-1,2", 1),
        ("0,2,-1,1", 2),
        ("0,4,1", 1),
        ("7", 0),
        ("0,1,1", 0),
        ("1gpu,2", 2),
        ("+1", 1),
        ("0,,1", 1),
        ("0,GPU-aa", 1),
        ("GPU-aa", None),
        ("MIG-aa", None),
        ("MIG-GPU-aa/3/0", None),
    ],
)
def test_a_list_is_read_as_the_driver_reads_it(mask, expected):
    assert count_visible(mask, 4) == expected


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ("GPU-aa11", 1),
        ("GPU-aa,GPU-bb", 2),
        ("GPU-bb,GPU-cc,GPU-aa", 1),  # there is no GPU-cc
        ("GPU-aa,GPU-aa11", 0),  # the same one twice
        ("GPU-", 0),  # which one?
        ("GPU-bb,0", 1),
        ("GPU-bb,", 1),
        ("MIG-aa", None),
    ],
)
def test_uuids_are_checked_where_they_are_known(mask, expected):
    assert count_visible(mask, 2, ["GPU-aa11", "GPU-bb22"]) == expected


# --- gpu ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "environ", "expected"),
    [
        (nvidia(8), {}, 8),
        (nvidia(12), {}, 12),
        (nvidia(8), {"CUDA_VISIBLE_DEVICES": "2,4,7"}, 3),
        (nvidia(8), {"CUDA_VISIBLE_DEVICES": "0,-1,2"}, 1),
        (nvidia(8), {"HIP_VISIBLE_DEVICES": "0"}, 8),
        (["dev/nvidia5"], {}, 1),  # a container with one device of the host
        (["dev/nvidia5"], {"CUDA_VISIBLE_DEVICES": "0"}, 1),
        (nvidia(2, ["GPU-aa11", "GPU-bb22"]), {"CUDA_VISIBLE_DEVICES": "GPU-bb"}, 1),
        (amd_gpus(4), {}, 4),
        (amd_gpus(4), {"HIP_VISIBLE_DEVICES": "0,1"}, 2),
        (amd_gpus(4), {"CUDA_VISIBLE_DEVICES": "0,1,2"}, 3),
        (amd_gpus(4), {"HIP_VISIBLE_DEVICES": "3", "CUDA_VISIBLE_DEVICES": "0,1,2"}, 1),
        (amd_gpus(4), {"ROCR_VISIBLE_DEVICES": "1,3"}, 2),
        # the second list counts within the first
        (amd_gpus(4), {"ROCR_VISIBLE_DEVICES": "1,3", "HIP_VISIBLE_DEVICES": "1,3"}, 1),
    ],
)
def test_gpus_are_counted_without_torch(root, files, environ, expected):
    assert count_gpu(root=root(files), environ=environ, ask=Torch()) == expected


def test_an_amd_gpu_of_another_container_is_not_counted(root, tmp_path):
    path = root(amd_gpus(4))
    (tmp_path / "dev/dri/renderD130").unlink()
    assert count_gpu(root=path, environ={}, ask=Torch()) == 3


@pytest.mark.parametrize(
    ("files", "environ"),
    [
        (nvidia(1) | MIG, {}),
        (nvidia(1) | MIG, {"CUDA_VISIBLE_DEVICES": "0"}),
        (nvidia(1), {"CUDA_VISIBLE_DEVICES": "MIG-1f2e"}),
        (nvidia(8), {"CUDA_VISIBLE_DEVICES": "GPU-aa,GPU-bb"}),
        (nvidia(2, ["GPU-aa11", "GPU-????"]), {"CUDA_VISIBLE_DEVICES": "GPU-aa"}),
        (amd_gpus(4), {"ROCR_VISIBLE_DEVICES": "GPU-1f2e", "HIP_VISIBLE_DEVICES": "0"}),
        (nvidia(1) | amd_gpus(1), {}),
        (["dev/dxg"], {}),
        (["dev/nvgpu"], {}),
    ],
)
def test_torch_is_queried_if_only_the_driver_knows(root, files, environ):
    torch = Torch(5)
    assert count_gpu(root=root(files), environ=environ, ask=torch) == 5
    assert torch.asked == ["cuda"]


@pytest.mark.parametrize(
    ("files", "environ", "why"),
    [
        ({}, {}, "/dev has no nvidia0 and no kfd with a GPU"),
        (["dev/nvidiactl", "dev/nvidia-uvm"], {}, "/dev has no nvidia0"),
        (amd_gpus(0), {}, "no kfd with a GPU"),
        (nvidia(8), {"CUDA_VISIBLE_DEVICES": ""}, "8 NVIDIA device(s), CUDA_VISIBLE_DEVICES is ''"),
        (nvidia(8) | MIG, {"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES is ''"),
        (nvidia(8), {"CUDA_VISIBLE_DEVICES": "9"}, "CUDA_VISIBLE_DEVICES is '9'"),
        (
            amd_gpus(4),
            {"HIP_VISIBLE_DEVICES": "-1"},
            "4 AMD GPU(s), ROCR_VISIBLE_DEVICES is not set, HIP_VISIBLE_DEVICES is '-1'",
        ),
    ],
)
def test_the_error_without_a_gpu_names_what_was_read(root, files, environ, why):
    with pytest.raises(UsageError) as caught:
        count_gpu(root=root(files), environ=environ, ask=Torch())
    assert why in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_torch_may_see_no_gpu(root):
    with pytest.raises(UsageError, match=r"torch\.cuda sees no device"):
        count_gpu(root=root(["dev/dxg"]), environ={}, ask=Torch(0))


def test_the_list_is_this_process_s_own(root, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    assert count_gpu(root=root(nvidia(8)), ask=Torch()) == 3


def test_a_root_with_special_characters_is_a_root(tmp_path):
    root = tmp_path / "a[b]*"
    (root / "dev").mkdir(parents=True)
    (root / "dev/nvidia0").touch()
    assert count_gpu(root=str(root), environ={}, ask=Torch()) == 1


# --- xpu ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("files", [INTEL, {"dev/dxg": ""}])
def test_xpus_are_counted_by_torch(root, files):
    torch = Torch(6)
    assert count_xpu(root=root(files), ask=torch) == 6
    assert torch.asked == ["xpu"]


@pytest.mark.parametrize(
    "files", [{}, {"sys/class/drm/renderD128/device/vendor": "0x10de\n"}, nvidia(8)]
)
def test_no_intel_gpu_is_an_error_without_asking(root, files):
    with pytest.raises(UsageError, match="no render device in /sys/class/drm is Intel's"):
        count_xpu(root=root(files), ask=Torch())


def test_torch_may_see_no_xpu(root):
    with pytest.raises(UsageError, match=r"torch\.xpu sees no device"):
        count_xpu(root=root(INTEL), ask=Torch(0))


# --- auto -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "environ", "expected"),
    [
        (nvidia(8), {}, 8),
        (nvidia(8), {"CUDA_VISIBLE_DEVICES": "1"}, 1),
        (nvidia(8), {"CUDA_VISIBLE_DEVICES": ""}, 6),
        (amd_gpus(4), {}, 4),
        (nvidia(2) | INTEL, {}, 2),
        ({}, {}, 6),
        ({"sys/class/drm/renderD128/device/vendor": "0x1a03\n"}, {}, 6),
    ],
)
def test_accelerators_else_processors_without_torch(root, files, environ, expected):
    torch = Torch()
    count = count_auto(root=root(files), environ=environ, platform="linux", affinity=6, ask=torch)
    assert count == expected


@pytest.mark.parametrize(
    ("files", "platform"),
    [
        (INTEL, "linux"),
        (nvidia(1) | MIG, "linux"),
        ({"dev/dxg": ""}, "linux"),
        ({"dev/accel/accel0": ""}, "linux"),
        ({"dev/davinci3": ""}, "linux"),
        ({}, "darwin"),
    ],
)
@pytest.mark.parametrize(("answer", "expected"), [(3, 3), (0, 6)])
def test_torch_is_queried_about_other_accelerators(root, files, platform, answer, expected):
    torch = Torch(answer)
    count = count_auto(root=root(files), environ={}, platform=platform, affinity=6, ask=torch)
    assert count == expected
    assert torch.asked == ["accelerator"]


def test_without_torch_processors_are_counted(root):
    torch = Torch(TorchMissingError("no torch"))
    assert count_auto(root=root(INTEL), environ={}, affinity=6, ask=torch) == 6


def test_a_torch_that_does_not_answer_is_an_error(root):
    torch = Torch(UsageError("asked torch.accelerator, which did not answer within 120 s"))
    with pytest.raises(UsageError, match="did not answer"):
        count_auto(root=root(INTEL), environ={}, affinity=6, ask=torch)


# --- all ------------------------------------------------------------------------------------------

COUNTING = """
import sys, plaunch_devices
for name in ("auto", "cpu", "gpu", "xpu"):
    try: getattr(plaunch_devices, f"count_{name}")()
    except ValueError: pass
"""
PLANNING = "import sys; from plaunch_devices import DeviceBinder; DeviceBinder('node').plan(1)\n"


@pytest.mark.parametrize("code", [COUNTING, PLANNING])
def test_neither_counting_nor_planning_loads_torch(code):
    heavy = {"torch", "numpy", "pluggy", "json", "multiprocessing"}
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""} if code == PLANNING else None
    done = run_python("-c", f"{code}print(sorted({heavy} & set(sys.modules)))", env=environ)
    assert done.stdout == "[]\n", done.stderr
