"""Trains a model whose parts are on different ranks."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard


def train():
    """The shapes of this rank's parts, and the last loss; the model is gone then, and its group."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.full((2, 4), dist.get_rank() + 1.0)).pow(2).sum()
        loss.backward()
        optimizer.step()
    return [tuple(parameter.to_local().shape) for parameter in model.parameters()], loss.item()


dist.init_process_group("gloo")
shapes, loss = train()
sys.stdout.write(f"rank {dist.get_rank()}: {shapes} {loss:.4f}\n")
dist.barrier()
dist.destroy_process_group()
