"""A training of one step, whose gradient is the mean over all ranks."""

import os

import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, data):
        return (self.weight * data).sum()


def data_of(rank):
    return torch.tensor([rank + 1.0])


def say(rank, size, total):
    """Write one line with what this worker knows: `total` is the sum over all ranks."""
    launcher = "torchrun" if "TORCHELASTIC_RUN_ID" in os.environ else "another launcher"
    if "PLAUNCH_ROUND" in os.environ:
        launcher = "plaunch"
    node = os.environ.get("GROUP_RANK", "0")
    os.write(1, f"{rank} of {size}, node {node}: {float(total):g}, {launcher}\n".encode())
