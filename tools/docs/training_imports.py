"""Writes the modules that `--preload=torch` imports in addition to torch.

    python tools/docs/training_imports.py            # adds what the installed torch needs
    python tools/docs/training_imports.py --list     # prints it, with its cost

Many modules of torch are not imported by `import torch`, but by the first use of a part: creating
an optimizer takes seconds. This program runs such uses, each in an interpreter of its own, and
notes the modules that they import, without those that these import in turn. It needs torch and the
standard library only, so it also runs in environments without plaunch. The list grows only: other
versions of torch import other modules, and the fork server ignores those that are missing.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

LIST = Path(__file__).parents[2] / "plugins/preload/plaunch_preload/server/training_modules.py"
BOUND = 600.0  # seconds for one use; on a busy machine, imports take minutes

# The program of one use. A line of its output is JSON: the imported modules and the CPU time.
PROGRAM = """\
import json, os, sys, tempfile, time, traceback
import torch, torch.distributed as dist
for name in sys.argv[2:]:
    try:
        __import__(name)
    except ImportError:
        pass

class Direct:
    "Notes the modules that are imported while no other module is."
    def __init__(self):
        self.names = []
    def find_spec(self, name, path, target=None):
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_name != "<module>":
            frame = frame.f_back
        if frame is not None and frame.f_globals["__name__"] == "__main__":
            self.names.append(name)

def group():
    store = dist.FileStore(os.path.join(tempfile.mkdtemp(), "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)

def train(model, optimizer):
    for _ in range(2):
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    dist.all_reduce(torch.ones(1))

def optimizer():
    group()
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2)
    train(model, optimizer)
    schedule.step()

def ddp():
    group()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))

def fsdp2():
    group()
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:  # where it was before torch 2.6
        from torch.distributed._composable.fsdp import fully_shard
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, torch.optim.AdamW(model.parameters()))

def loader():
    data = torch.utils.data.TensorDataset(torch.zeros(8, 4))
    sampler = torch.utils.data.DistributedSampler(data, 1, 0)
    for workers in (0, 1):
        list(torch.utils.data.DataLoader(data, 2, sampler=sampler, num_workers=workers))

def amp():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.ones(2, 4)).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()

def checkpoint():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.pt")
        torch.save(torch.nn.Linear(4, 4).state_dict(), path)
        torch.load(path)

direct = Direct()
before, began = set(sys.modules), time.process_time()
sys.meta_path.insert(0, direct)
try:
    globals()[sys.argv[1]]()
except Exception:  # this torch cannot do it without a GPU
    traceback.print_exc()
took = time.process_time() - began
names = [name for name in direct.names if name in sys.modules and name not in before]
print("\\n" + json.dumps({"names": names, "seconds": took}), flush=True)
os._exit(0)  # without the end of the process group
"""
USES = ("optimizer", "ddp", "fsdp2", "loader", "amp", "checkpoint")


def observe(use: str, imported: Iterable[str] = ()) -> tuple[list[str], float]:
    """Run a use of torch; return the modules that it imports itself, and its CPU time in seconds.

    Args:
        use: one of `USES`.
        imported: modules that are imported before, if they exist.
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, use, *imported],
        stdout=subprocess.PIPE,
        check=True,
        timeout=BOUND,
        env={**os.environ, "USE_LIBUV": "0"},
    )
    # gloo prints to stdout, too.
    (line,) = (line for line in done.stdout.splitlines() if line.startswith(b'{"names"'))
    found = json.loads(line)
    return found["names"], found["seconds"]


def read_listed() -> tuple[str, ...]:
    """Return the listed modules."""
    return tuple(re.findall(r'^        "(.+)",$', LIST.read_text(), re.MULTILINE))


def find_missing() -> list[str]:
    """Return the modules that some use still imports after the listed ones."""
    listed = read_listed()
    missing: dict[str, None] = {}
    for use in USES:
        names, _ = observe(use, (*listed, *missing))
        missing.update(dict.fromkeys(names))
    return list(missing)


def write_listed(names: Iterable[str]) -> None:
    """Replace the list."""
    rows = "".join(f'        "{name}",\n' for name in names)
    text = re.sub(r'(?<="torch": \(\n).*?(?=    \),)', rows, LIST.read_text(), flags=re.DOTALL)
    LIST.write_text(text)


def main() -> None:
    """Run as the docstring of this module says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print what each use imports")
    args = parser.parse_args()
    if not args.list:
        write_listed(sorted({*read_listed(), *find_missing()}))
        return
    print(f"Python {platform.python_version()}, torch {importlib.metadata.version('torch')}")
    for use in USES:
        for when, imported in (("torch alone", ()), ("with the list", read_listed())):
            names, seconds = observe(use, imported)
            print(f"{use}, {when}: {seconds:.2f} s of CPU; {', '.join(names) or 'no imports'}")


if __name__ == "__main__":
    main()
