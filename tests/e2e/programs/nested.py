"""Starts processes with torch.multiprocessing."""

import os
import sys

import torch.multiprocessing


def work(index, results):
    results.put((index, os.environ["RANK"]))


if __name__ == "__main__":
    results = torch.multiprocessing.get_context("spawn").SimpleQueue()
    torch.multiprocessing.spawn(work, args=(results,), nprocs=2)
    sys.stdout.write(f"{sorted(results.get() for _ in range(2))}\n")
