"""Uses the device, and fails once the file `fail` is there."""

import sys
import time
from pathlib import Path

import torch
from worker import RANK, say, work

say(f"up.{RANK}", work=work(torch))
while not Path("fail").exists():
    time.sleep(0.02)
sys.exit(3)
