"""Loads data with loader processes, with each start method."""

import os
import sys

import torch
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    """Is pickled by the name of its class in `__main__`."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor(float(index) ** 2), int(os.environ["RANK"])


if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        torch.manual_seed(0)
        loader = DataLoader(
            Squares(), batch_size=2, num_workers=2, shuffle=True, multiprocessing_context=method
        )
        batches = [(values.tolist(), ranks.tolist()) for values, ranks in loader]
        sys.stdout.write(f"{method}: {batches}\n")
