"""Prints whether torch detects the launcher, and the launcher's variables."""

import json
import os
import sys

import torch.distributed as dist

found = {
    name: value
    for name, value in os.environ.items()
    if name.startswith(("TORCH", "LOCAL_", "GROUP_", "ROLE_", "MASTER_"))
    or name in ("RANK", "WORLD_SIZE", "OMP_NUM_THREADS")
}
shown = {"launched": dist.is_torchelastic_launched(), "argv": sys.argv[1:], **found}
sys.stdout.write(json.dumps(shown, sort_keys=True) + "\n")
