"""Joins a group with the backend in the arguments, and adds up ranks on the device."""

import sys

import torch
import torch.distributed as dist
from worker import DEVICE, RANK, say, work

backend = sys.argv[1]
dist.init_process_group(backend)
value = work(torch)
# gloo adds up in the memory of the host, as torch has it for all devices.
ranks = torch.tensor([float(RANK)], device=DEVICE if backend == "nccl" else "cpu")
dist.all_reduce(ranks)
say(f"group.{RANK}", work=value, sum=float(ranks), world=dist.get_world_size())
dist.destroy_process_group()
