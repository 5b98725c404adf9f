"""An import hook: programs that import torchrun's modules get plaunch's.

A finder answers for the names of torchrun's modules, in front of all others. What is imported then
has plaunch's functions, and for any other name that torch's module has, torch's own object: ours
understand those. Nothing of torch is imported before it is needed.
"""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

MODULES = {  # torch's: ours
    "torch.distributed.run": "plaunch_torchrun.run",
    "torch.distributed.launch": "plaunch_torchrun.launch",
    "torch.distributed.launcher": "plaunch_torchrun.launcher",
    "torch.distributed.launcher.api": "plaunch_torchrun.launcher",
}


def install() -> None:
    """Have programs that call torchrun in this process launch with plaunch, from now on.

    Call it before they import `torch.distributed.run`, `torch.distributed.launch` or
    `torch.distributed.launcher`. Modules that are there already are replaced, but code that holds
    a function of one (`from torch.distributed.run import main`) keeps that. It may be called
    twice. Processes that this one starts know nothing of it: see `python -m plaunch_torchrun`.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder())
    for name in MODULES:
        theirs = sys.modules.pop(name, None)
        if theirs is None:
            continue
        ours = importlib.import_module(name)
        vars(ours)["_theirs"] = theirs  # what it has done when it was imported, it does not again
        parent, _, last = name.rpartition(".")
        setattr(sys.modules[parent], last, ours)


class ReplacedModule(ModuleType):
    """A module of torchrun's name, with plaunch's functions."""

    _theirs: ModuleType | None = None

    def __getattr__(self, name: str) -> Any:
        ours = importlib.import_module(MODULES[self.__name__])
        if name in ours.__all__:
            return getattr(ours, name)
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self._load_theirs(), name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *importlib.import_module(MODULES[self.__name__]).__all__]

    def _load_theirs(self) -> ModuleType:
        """Torch's module, which is run if it was not, and is in nobody's way."""
        if self._theirs is None:
            spec = vars(self)["__loader__"].theirs
            theirs = module_from_spec(spec)
            spec.loader.exec_module(theirs)
            self._theirs = theirs
        return self._theirs


class _Finder(MetaPathFinder):
    """Answers for torchrun's modules, where there is a torch that has them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the module that replaces one of torch's."""
        if fullname not in MODULES:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(fullname, path, target) for finder in others)
        theirs = next((spec for spec in found if spec is not None), None)
        if theirs is None:
            return None
        spec = ModuleSpec(fullname, _Loader(theirs), origin=MODULES[fullname])
        spec.submodule_search_locations = theirs.submodule_search_locations
        return spec


class _Loader(Loader):
    """Makes modules that replace those of torch.

    Args:
        theirs: where torch's module is.
    """

    def __init__(self, theirs: ModuleSpec) -> None:
        self.theirs = theirs

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make the module; everything in it is looked up when it is wanted."""
        return ReplacedModule(spec.name, f"Replaces the module of torch; see {MODULES[spec.name]}.")

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: there is nothing to run."""
