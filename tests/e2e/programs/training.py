"""The steps of a training: loader processes, collectives, checkpoints, parallel training."""

import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


class Model(torch.nn.Module):
    """A model with an unused part."""

    def __init__(self):
        super().__init__()
        self.used = torch.nn.Linear(2, 1)
        self.unused = torch.nn.Linear(2, 1)

    def forward(self, data):
        return self.used(data)


def load():
    loader = DataLoader(TensorDataset(torch.arange(12.0)), batch_size=3, num_workers=2)
    return sum(batch.sum().item() for (batch,) in loader)


def add_up(rank):
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    return total.item()


def save(rank, folder):
    """Save a checkpoint with all ranks, and load it into other tensors."""
    checkpoint.save({f"weights{rank}": torch.full((4,), rank + 1.0)}, checkpoint_id=folder)
    loaded = {f"weights{rank}": torch.zeros(4)}
    checkpoint.load(loaded, checkpoint_id=folder)
    return loaded[f"weights{rank}"].sum().item()


def train(rank):
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.full((4, 2), rank + 1.0)).sum().backward()
        optimizer.step()
    return [round(value, 4) for value in model.module.used.weight.flatten().tolist()]


def main():
    loaded = load()
    dist.init_process_group("gloo", init_method="env://")
    rank, size = dist.get_rank(), dist.get_world_size()
    results = f"{loaded} {add_up(rank)} {save(rank, sys.argv[1])} {train(rank)}"
    sys.stdout.write(f"rank {rank} of {size}: {results}\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
