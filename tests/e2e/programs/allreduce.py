"""Adds up ranks over gloo."""

import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo", init_method="env://")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
sys.stdout.write(f"rank {dist.get_rank()} of {dist.get_world_size()}: {total.item()}\n")
dist.barrier()
dist.destroy_process_group()
