"""Trains a model of which a part is not used, in parallel."""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used = torch.nn.Linear(2, 1)
        self.unused = torch.nn.Linear(2, 1)

    def forward(self, data):
        return self.used(data)


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(Model(), find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.full((4, 2), dist.get_rank() + 1.0)).sum().backward()
    optimizer.step()
weights = [round(value, 4) for value in model.module.used.weight.flatten().tolist()]
sys.stdout.write(f"rank {dist.get_rank()}: {weights}\n")
dist.barrier()
dist.destroy_process_group()
