"""Exceeds its own timer."""

import os
import sys
import time

import torch.distributed.elastic.timer as timer

timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
with timer.expires(after=60, scope="short"):
    sys.stdout.write("in time\n")
with timer.expires(after=0.5, scope="long"):
    time.sleep(60)
sys.stdout.write("too late\n")
