"""Loads data with two processes of its own."""

import os
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    data = TensorDataset(torch.arange(12.0))
    loader = DataLoader(data, batch_size=3, num_workers=2)
    total = sum(batch.sum().item() for (batch,) in loader)
    sys.stdout.write(f"rank {os.environ['RANK']}: {total}\n")
