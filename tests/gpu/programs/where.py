"""Says which device this worker sees, and on which processors it runs."""

import os

import torch
from worker import RANK, STAND_IN, say

properties = None if STAND_IN else torch.cuda.get_device_properties(0)
say(
    f"where.{RANK}",
    visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
    local_rank=os.environ["LOCAL_RANK"],
    workers=os.environ["LOCAL_WORLD_SIZE"],
    devices=1 if STAND_IN else torch.cuda.device_count(),
    uuid="" if properties is None else str(properties.uuid),
    processors=sorted(os.sched_getaffinity(0)),
)
