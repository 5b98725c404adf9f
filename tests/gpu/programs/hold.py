"""Holds a GiB of the device until it is killed."""

import os
import time

import torch
from worker import DEVICE, RANK, say

held = torch.ones(1 << 28, device=DEVICE) if DEVICE == "cuda" else torch.ones(1 << 10)
say(f"hold.{RANK}", pid=os.getpid(), sum=float(held[:8].sum()))
time.sleep(10_000)
