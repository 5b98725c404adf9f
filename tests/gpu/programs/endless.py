"""Waits for a kernel that never ends in the first attempt."""

import os

import torch
from worker import ATTEMPT, RANK, run_endless_kernel, say, synchronize, work

value = work(torch)
say(f"endless.{ATTEMPT}.{RANK}", pid=os.getpid(), work=value)
if ATTEMPT == 0:
    run_endless_kernel(torch)
    synchronize(torch)
