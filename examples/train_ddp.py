"""Train a small network on scikit-learn's handwritten digits with DistributedDataParallel.

    plaunch --nproc-per-node=2 --max-restarts=1 examples/train_ddp.py

torchrun starts it in the same way. After every epoch, rank 0 prints the loss and the test accuracy,
and writes a checkpoint. When a worker dies, all workers restart and continue after the last saved
epoch, and so does a job that its scheduler requeues. A new job starts from the beginning, unless
`--resume` is given.
"""

from __future__ import annotations

import argparse
import gc
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=10, help="number of epochs (default: 10)")
    parser.add_argument("--batch-size", type=int, default=32, help="per worker (default: 32)")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate (default: 0.05)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    parser.add_argument(
        "--checkpoint",
        type=Path,
        default=Path("checkpoint.pt"),
        help="file to save to; on several nodes, on a shared file system (default: checkpoint.pt)",
    )
    parser.add_argument(
        "--resume", action="store_true", help="continue from the checkpoint of an earlier job"
    )
    args = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("this script is started by plaunch or torchrun, which set RANK and WORLD_SIZE")
    return args


def choose_device() -> torch.device:
    """Return this worker's GPU if there is one for each worker of the node, else the CPU."""
    local_rank = int(os.environ["LOCAL_RANK"])
    local_world_size = int(os.environ["LOCAL_WORLD_SIZE"])
    if torch.cuda.device_count() >= local_world_size:
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        return device
    if "OMP_NUM_THREADS" not in os.environ:
        # Workers that each use all cores slow each other down.
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // local_world_size))
    return torch.device("cpu")


def load_data(seed: int) -> tuple[TensorDataset, TensorDataset]:
    """Load the digits as 64 grey levels from 0 to 1 and a label; one fifth is test data."""
    images, labels = load_digits(return_X_y=True)
    split = train_test_split(images / 16, labels, test_size=0.2, random_state=seed, stratify=labels)
    train_x, test_x, train_y, test_y = (torch.from_numpy(part) for part in split)
    return TensorDataset(train_x.float(), train_y), TensorDataset(test_x.float(), test_y)


def train_epoch(
    model: nn.Module,
    loader: DataLoader[Any],
    optimizer: torch.optim.Optimizer,
    device: torch.device,
) -> float:
    """Train on this worker's share of the data; return the mean loss of all workers."""
    total = torch.zeros(2, device=device)  # the sum of losses, the number of samples
    for batch in loader:
        x, y = (tensor.to(device) for tensor in batch)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total[0] += loss.detach() * len(y)
        total[1] += len(y)
    dist.all_reduce(total)
    return float(total[0] / total[1])


@torch.no_grad()
def accuracy_on(model: nn.Module, data: TensorDataset, device: torch.device) -> float:
    """Return the accuracy on the test images; every worker evaluates its part of them."""
    x, y = (tensor[dist.get_rank() :: dist.get_world_size()].to(device) for tensor in data.tensors)
    correct = (model(x).argmax(dim=1) == y).sum()
    dist.all_reduce(correct)
    return float(correct) / len(data)


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write to a temporary file and rename it, so that a crash leaves no partial checkpoint."""
    unfinished = path.with_name(path.name + ".part")
    torch.save(state, unfinished)
    unfinished.replace(path)


def load_checkpoint(path: Path, resume: bool) -> dict[str, Any] | None:
    """Return the state to continue from, or None. Rank 0 decides, and sends it to all workers."""
    found: list[dict[str, Any] | None] = [None]
    if dist.get_rank() == 0 and path.exists():
        saved = torch.load(path, map_location="cpu", weights_only=True)
        if resume or is_of_this_job(saved):
            found = [saved]
    dist.broadcast_object_list(found)
    return found[0]


def is_of_this_job(saved: dict[str, Any]) -> bool:
    """Whether this job wrote the checkpoint before a restart."""
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    # "none" is the run id of every job on several nodes without --rdzv-id.
    return bool(saved.get("job_id") == job_id()) and (job_id() != "none" or restarts > 0)


def job_id() -> str:
    """Return plaunch's job id, which a requeued job keeps; with torchrun, the run id."""
    return os.environ.get("PLAUNCH_JOB_ID") or os.environ["TORCHELASTIC_RUN_ID"]


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Train from the last checkpoint of this job, or from the beginning; save every epoch."""
    torch.manual_seed(args.seed)

    train_data, test_data = load_data(args.seed)
    sampler: DistributedSampler[Any] = DistributedSampler(train_data, seed=args.seed)
    loader = DataLoader(train_data, batch_size=args.batch_size, sampler=sampler)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9)

    def say(text: str) -> None:
        if dist.get_rank() == 0:
            print(text, flush=True)

    done = 0
    saved = load_checkpoint(args.checkpoint, args.resume)
    if saved is not None:
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        done = saved["epochs"]
    model = DistributedDataParallel(net)

    how = f"continuing after epoch {done}" if saved is not None else "from the beginning"
    say(f"{dist.get_world_size()} workers on {device.type}, {len(train_data)} images, {how}")
    for epoch in range(done + 1, args.epochs + 1):
        sampler.set_epoch(epoch)  # another order in every epoch, the same on all workers
        loss = train_epoch(model, loader, optimizer, device)
        accuracy = accuracy_on(net, test_data, device)
        say(f"epoch {epoch:3}/{args.epochs}  loss {loss:.4f}  test accuracy {accuracy:.1%}")
        if dist.get_rank() == 0:
            state = {
                "job_id": job_id(),
                "epochs": epoch,
                "model": net.state_dict(),
                "optimizer": optimizer.state_dict(),
            }
            save_checkpoint(args.checkpoint, state)
    say(f"done: {args.epochs} epochs, test accuracy {accuracy_on(net, test_data, device):.1%}")


@record
def main() -> None:
    args = parse_args()
    device = choose_device()
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    train(args, device)
    # The model's reference cycles keep gloo's threads alive, and a live thread may crash the
    # interpreter at its exit (https://github.com/pytorch/pytorch/pull/179291).
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
