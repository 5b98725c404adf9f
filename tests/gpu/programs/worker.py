"""What the programs here share: the device, and files that tests read."""

import json
import os
import time
from pathlib import Path

STAND_IN = bool(os.environ.get("GPU_STAND_IN"))
DEVICE = "cpu" if STAND_IN else "cuda"
RANK = int(os.environ["RANK"])
ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def say(name, **fields):
    """Write `fields` into the file `name`, which a reader sees whole or not at all."""
    part = Path(f"{name}.part")
    part.write_text(json.dumps(fields))
    part.replace(name)


def work(torch):
    """Compute something on the device; return when the result is there."""
    ones = torch.ones(256, 256, device=DEVICE)
    return float((ones @ ones)[0, 0])


def run_endless_kernel(torch):
    """Start a kernel that runs for years, and return at once."""
    if not STAND_IN:
        torch.cuda._sleep(1 << 62)


def synchronize(torch):
    """Wait for the device."""
    if STAND_IN:
        time.sleep(10_000)
    torch.cuda.synchronize()
