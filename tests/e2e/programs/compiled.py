"""Compiles functions with torch's compiler, which starts processes for that."""

import os
import sys

import torch
from torch._inductor.async_compile import AsyncCompile


@torch.compile
def first(x):
    return torch.sin(x) ** 2 + torch.cos(x) ** 2


@torch.compile
def second(x):
    return (x * 2 + 1).relu().sum()


def main():
    x = torch.arange(6.0) - 3
    sums = f"{first(x).sum().item():.1f} {second(x).item():.1f}"
    # Without a GPU it compiles on threads only, if it is not asked.
    is_another = AsyncCompile.process_pool().submit(os.getpid).result() != os.getpid()
    sys.stdout.write(f"rank {os.environ['RANK']}: {sums} {is_another}\n")


if __name__ == "__main__":
    main()
