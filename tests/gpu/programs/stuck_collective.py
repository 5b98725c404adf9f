"""Has an operation of NCCL wait behind a kernel that never ends, until it times out."""

from datetime import timedelta

import torch
import torch.distributed as dist
from worker import run_endless_kernel, say, synchronize

device = torch.device("cuda", 0)
torch.cuda.set_device(device)
dist.init_process_group("nccl", timeout=timedelta(seconds=5))
ones = torch.ones(8, device=device)
dist.all_reduce(ones)
torch.cuda.synchronize()
say("collective", sum=float(ones.sum()))
run_endless_kernel(torch)
dist.all_reduce(ones)
synchronize(torch)
