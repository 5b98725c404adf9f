"""Launches a function with torch's configuration class, and prints its results."""

import importlib
import os
import sys

import torch
from torch.distributed.launcher.api import LaunchConfig


def work(offset):
    rank = int(os.environ["RANK"])
    return {"rank": rank, "values": torch.arange(3) + rank + offset}


if __name__ == "__main__":
    launcher = importlib.import_module(sys.argv[1])
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id="functions",
        max_restarts=0,
        start_method="spawn",
    )
    for rank, value in sorted(launcher.elastic_launch(config, work)(10).items()):
        print(rank, value["rank"], value["values"].tolist())
