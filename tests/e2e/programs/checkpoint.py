"""Saves a checkpoint with all ranks, and loads it into other tensors."""

import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint

dist.init_process_group("gloo")
rank = dist.get_rank()
checkpoint.save({f"weights{rank}": torch.full((4,), rank + 1.0)}, checkpoint_id=sys.argv[1])
loaded = {f"weights{rank}": torch.zeros(4)}
checkpoint.load(loaded, checkpoint_id=sys.argv[1])
sys.stdout.write(f"rank {rank}: {loaded[f'weights{rank}'].sum().item()}\n")
dist.barrier()
dist.destroy_process_group()
