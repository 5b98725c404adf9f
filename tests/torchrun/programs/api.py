"""What the programs here import: torchrun's names, from torch or from plaunch, and `show`."""

from __future__ import annotations

import builtins
import importlib
import json
import os

ELASTIC = "torch.distributed.elastic"
TORCH = {
    "launcher": ("torch.distributed.launcher.api",),
    "multiprocessing": (
        f"{ELASTIC}.multiprocessing",
        f"{ELASTIC}.multiprocessing.api",
        f"{ELASTIC}.multiprocessing.errors",
    ),
    "agent": (
        f"{ELASTIC}.agent.server.api",
        f"{ELASTIC}.agent.server.local_elastic_agent",
    ),
    "rendezvous": (
        f"{ELASTIC}.rendezvous.registry",
        f"{ELASTIC}.rendezvous.api",
        f"{ELASTIC}.rendezvous.utils",
    ),
    "timer": (f"{ELASTIC}.timer", f"{ELASTIC}.timer.local_timer"),
    "events": (f"{ELASTIC}.events", f"{ELASTIC}.events.handlers"),
    "metrics": (f"{ELASTIC}.metrics", f"{ELASTIC}.metrics.api"),
    "utils": (f"{ELASTIC}.utils", f"{ELASTIC}.utils.store", f"{ELASTIC}.utils.distributed"),
}
PLAUNCH = {
    name: (
        "plaunch_torchrun.launcher" if name == "launcher" else f"plaunch_torchrun.elastic.{name}",
    )
    for name in TORCH
}
ERRORS = (
    "ChildFailedError SignalException RendezvousClosedError RendezvousTimeoutError "
    "RendezvousConnectionError RendezvousStateError RendezvousGracefulExitError RendezvousError"
).split()
# The special ones first: an error of plaunch's may be a ValueError as well as torch's class.
BUILTINS = (
    FileNotFoundError,
    NotADirectoryError,
    RuntimeError,
    AssertionError,
    KeyError,
    ValueError,
    TypeError,
    AttributeError,
)


class Names:
    """The public names of one package; torch spreads them over several modules."""

    def __init__(self, name):
        self._modules = (TORCH if os.environ["API"] == "torch" else PLAUNCH)[name]

    def __getattr__(self, name):
        for module in map(importlib.import_module, self._modules):
            if hasattr(module, name):
                return getattr(module, name)
        raise AttributeError(f"{self._modules} have no {name!r}")


def __getattr__(name):
    if name not in TORCH:
        raise AttributeError(name)
    return Names(name)


def load():
    """Import everything, torch as well, before the programs are forked."""
    importlib.import_module("torch.distributed")
    for modules in (TORCH if os.environ["API"] == "torch" else PLAUNCH).values():
        for module in modules:
            importlib.import_module(module)


def torchs(name):
    """One of torch's modules, as a program imports it; with plaunch, after `install`."""
    if os.environ["API"] == "plaunch":
        importlib.import_module("plaunch_torchrun").install()
    return importlib.import_module(f"torch.distributed.{name}")


def show(**observed):
    """Append to what the program has observed; JSON turns keys that are numbers into text."""
    with open(os.environ["OBSERVED"], "a", encoding="utf-8") as file:
        file.write(json.dumps(observed, default=str) + "\n")


def kind(error):
    """The class of an error by which programs catch it: torchrun's own, or a builtin one."""
    names = [base.__name__ for base in type(error).__mro__]
    found = next((name for name in ERRORS if name in names), None)
    found = found or next((b.__name__ for b in BUILTINS if isinstance(error, b)), None)
    return found or next(name for name in names if name in vars(builtins))


def caught(function, *args, **kwargs):
    """The kind of what a call raises, or None."""
    try:
        function(*args, **kwargs)
    except Exception as error:
        return kind(error)
    return None


def failures(found):
    """What matters of failures, by rank."""
    return {
        rank: [one.local_rank, one.exitcode, one.signal_name(), one.pid > 0]
        for rank, one in sorted(found.items())
    }
