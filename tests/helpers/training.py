"""A training of several workers, the same for all engines, and a program that only waits.

Each step of the training prints the loss and saves a checkpoint, from which a restarted training
continues. Both end when the file `exit` exists. Each worker starts a process that has nothing in
common with it but its environment.
"""

from __future__ import annotations

from helpers.nodes import WORKER
from helpers.waiting import wait_until

STRAY = """\
import subprocess
subprocess.run(["sh", "-c", "cd / && sleep 600 &"], start_new_session=True)
"""
WAITING = STRAY + WORKER
_TRAINING = """\
import json, os, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def say(**facts):
    os.write(1, (json.dumps(facts) + "\\n").encode())

say(pid=os.getpid(), **{n: os.environ[n] for n in ("RANK", "WORLD_SIZE", "PLAUNCH_ROUND")})
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, round_ = dist.get_rank(), int(os.environ["PLAUNCH_ROUND"])
torch.manual_seed(rank)
x = torch.randn(64, 8)
y = x @ torch.arange(1.0, 9.0)
net = torch.nn.Linear(8, 1, bias=False)
step = 0
if os.path.exists("checkpoint.pt"):
    saved = torch.load("checkpoint.pt", weights_only=True)
    step = saved.pop("step")
    net.load_state_dict(saved)
dist.barrier()
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
is_over = 0
while not is_over:
    loss = (model(x).squeeze() - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    total = torch.tensor([loss.item(), os.path.exists("exit")])
    dist.all_reduce(total)
    is_over = total[1]
    if rank == 0:
        torch.save({**net.state_dict(), "step": step}, "checkpoint.part")
        os.rename("checkpoint.part", "checkpoint.pt")
        say(round=round_, step=step, loss=total[0].item() / dist.get_world_size())
    time.sleep(0.05)
say(end=rank, weights=net.weight.flatten().tolist())
dist.destroy_process_group()
"""
TRAINING = STRAY + _TRAINING


def wait_for_learning(command, round_=0):
    """Wait until the loss has halved in a round; return the facts of its steps."""

    def steps():
        return [facts for facts in command.facts("loss") if facts["round"] == round_]

    wait_until(lambda: steps() and steps()[-1]["loss"] < steps()[0]["loss"] / 2, command.text)
    return steps()


def check_learned(command, rounds):
    """Assert that the loss fell in each step of all rounds, and that all workers have learned."""
    steps = command.facts("loss")
    losses = [facts["loss"] for facts in steps]
    assert losses == sorted(losses, reverse=True), losses
    assert losses[-1] < losses[0] / 2**rounds
    assert {facts["round"] for facts in steps} == {*range(rounds)}
    weights = [facts["weights"] for facts in command.facts("end")]
    assert len(weights) == 3
    assert weights == [weights[0]] * 3
