"""A training of steps on the device, with a checkpoint after each; killed in one, it resumes."""

import time
from pathlib import Path

import torch
from worker import ATTEMPT, DEVICE, say

saved = Path("checkpoint.pt")
state = {"step": 0, "weights": torch.zeros(64)}
if saved.exists():
    state = torch.load(saved)
first = state["step"]
weights = state["weights"].to(DEVICE)
for step in range(first, 6):
    if step == 3 and ATTEMPT == 0:
        Path("in-step-3").touch()
        time.sleep(10_000)  # in the middle of the step
    weights += 1
    torch.save({"step": step + 1, "weights": weights.cpu()}, saved.with_suffix(".part"))
    saved.with_suffix(".part").replace(saved)
say("done", attempt=ATTEMPT, first=first, weight=float(weights[0]))
