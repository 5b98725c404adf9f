"""The GPU of this machine, as `nvidia-smi` sees it, or the processor in its place."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from time import monotonic, sleep

MIB = 1 << 20
_ALIKE = 64  # MiB by which the memory in use may differ from before
_PATIENCE = 30.0  # seconds that the driver may take to release the memory of a process

_FIELDS = ("uuid", "pci.bus_id", "memory.used")


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU.

    Args:
        uuid: its name.
        bus_id: its address, as in /sys/bus/pci/devices.
    """

    uuid: str = ""
    bus_id: str = ""
    is_real: bool = True

    @property
    def kind(self) -> str:
        """What --nproc-per-node calls it."""
        return "gpu" if self.is_real else "1"

    @property
    def nccl(self) -> str:
        """The backend of collective operations on it."""
        return "nccl" if self.is_real else "gloo"

    def count(self) -> int:
        """How many there are."""
        return len(_query()) if self.is_real else 1

    def memory(self) -> int:
        """MiB in use, of all programs."""
        return int(_query()[0]["memory.used"]) if self.is_real else 0

    def wait_for_memory(self, most: int) -> float:
        """Wait until no more than about `most` MiB are in use; return for how many seconds."""
        began = monotonic()
        while (used := self.memory()) > most + _ALIKE:
            assert monotonic() - began < _PATIENCE, f"{used} MiB in use, {most} MiB before"
            sleep(0.05)
        return monotonic() - began


def find_gpu() -> Gpu | str:
    """The first GPU, or why there is none to test with."""
    if os.environ.get("GPU_STAND_IN"):
        return Gpu(is_real=False)
    if shutil.which("nvidia-smi") is None:
        return "nvidia-smi is not on PATH: this machine has no driver of NVIDIA's"
    try:
        found = _query()
    except subprocess.CalledProcessError as error:
        return f"nvidia-smi fails: {(error.stdout + error.stderr).strip()[:200]}"
    if not found:
        return "nvidia-smi shows no GPU"
    program = "import torch; print(torch.__version__, torch.cuda.is_available())"
    asked = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    if not asked.stdout.endswith("True\n"):
        return (
            f"torch {asked.stdout.partition(' ')[0].strip() or 'is not installed, or'} sees no GPU"
        )
    domain, _, rest = found[0]["pci.bus_id"].partition(":")  # 00000000:65:00.0
    return Gpu(found[0]["uuid"], f"{domain[-4:]}:{rest}".lower())


def _query() -> list[dict[str, str]]:
    command = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    return [dict(zip(_FIELDS, line.split(", "), strict=True)) for line in printed.splitlines()]
