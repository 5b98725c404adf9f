"""How the GPU of a machine is found, with programs in place of `nvidia-smi` and torch."""

from __future__ import annotations

import pytest

from . import device
from .device import Gpu, find_gpu

SHOWN = "GPU-7f, 00000000:65:00.0, 523\\nGPU-80, 00000000:CA:00.0, 4"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Make `nvidia-smi` print something, and torch see a GPU or not."""

    def make(smi="", torch="2.13.0+cu130 True"):
        for name, text in (("nvidia-smi", smi), ("python", f"printf '{torch}\\n'")):
            program = tmp_path / name
            program.write_text(f"#!/bin/sh\n{text}\n")
            program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(device.sys, "executable", str(tmp_path / "python"))

    monkeypatch.delenv("GPU_STAND_IN", raising=False)
    return make


def test_the_first_gpu(machine):
    machine(f"printf '{SHOWN}\\n'")
    gpu = find_gpu()
    assert gpu == Gpu("GPU-7f", "0000:65:00.0")
    assert (gpu.count(), gpu.memory(), gpu.kind, gpu.nccl) == (2, 523, "gpu", "nccl")
    assert gpu.wait_for_memory(500) >= 0


def test_memory_that_is_not_free_again(machine, monkeypatch):
    machine(f"printf '{SHOWN}\\n'")
    monkeypatch.setattr(device, "_PATIENCE", 0.0)
    with pytest.raises(AssertionError, match="523 MiB in use, 100 MiB before"):
        find_gpu().wait_for_memory(100)


@pytest.mark.parametrize(
    ("smi", "torch", "why"),
    [
        ("echo broken >&2; exit 9", "", "nvidia-smi fails: broken"),
        (":", "", "nvidia-smi shows no GPU"),
        (f"printf '{SHOWN}\\n'", "2.13.0+cpu False", "torch 2.13.0+cpu sees no GPU"),
        (f"printf '{SHOWN}\\n'", "", "torch is not installed, or sees no GPU"),
    ],
)
def test_why_there_is_none(machine, smi, torch, why):
    machine(smi, torch)
    assert find_gpu() == why


def test_no_driver(monkeypatch, tmp_path):
    monkeypatch.delenv("GPU_STAND_IN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_gpu() == "nvidia-smi is not on PATH: this machine has no driver of NVIDIA's"
