"""An import hook: programs that import torchrun's modules get plaunch's.

A finder for the names of torchrun's modules is placed before all others. The imported module has
plaunch's functions and, for all other names of torch's module, torch's own objects, which plaunch's
functions accept. torch is imported only when such a name is used.
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

MODULES = {  # torch's module: its replacement
    "torch.distributed.run": "plaunch_torchrun.run",
    "torch.distributed.launch": "plaunch_torchrun.launch",
    "torch.distributed.launcher": "plaunch_torchrun.launcher",
    "torch.distributed.launcher.api": "plaunch_torchrun.launcher",
}


def install() -> None:
    """Make programs that call torchrun in this process launch with plaunch.

    Call it before they import `torch.distributed.run`, `torch.distributed.launch` or
    `torch.distributed.launcher`. Imported modules are replaced, but code that has imported a
    function of one (`from torch.distributed.run import main`) keeps it. It may be called twice. It
    does not affect child processes: see `python -m plaunch_torchrun`.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder())
    for name in MODULES:
        original = sys.modules.pop(name, None)
        if original is None:
            continue
        replacement = importlib.import_module(name)
        vars(replacement)["_torch_module"] = original  # not to be executed again
        parent, _, last = name.rpartition(".")
        setattr(sys.modules[parent], last, replacement)


class ReplacedModule(ModuleType):
    """A module with the name of torchrun's and plaunch's functions."""

    _torch_module: ModuleType | None = None

    def __getattr__(self, name: str) -> Any:
        replacement = importlib.import_module(MODULES[self.__name__])
        if name in replacement.__all__:
            return getattr(replacement, name)
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self._load_torch_module(), name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *importlib.import_module(MODULES[self.__name__]).__all__]

    def _load_torch_module(self) -> ModuleType:
        """Return torch's module, and execute it at the first call, outside of `sys.modules`."""
        if self._torch_module is None:
            spec = vars(self)["__loader__"].original
            original = module_from_spec(spec)
            spec.loader.exec_module(original)
            self._torch_module = original
        return self._torch_module


class _Finder(MetaPathFinder):
    """Finds replacements for torchrun's modules, if torch is installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the replacement of a module of torch."""
        if fullname not in MODULES:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(fullname, path, target) for finder in others)
        original = next((spec for spec in found if spec is not None), None)
        if original is None:
            return None
        spec = ModuleSpec(fullname, _ReplacementLoader(original), origin=MODULES[fullname])
        spec.submodule_search_locations = original.submodule_search_locations
        return spec


class _ReplacementLoader(Loader):
    """Creates the replacements of torch's modules.

    Args:
        original: the spec of torch's module.
    """

    def __init__(self, original: ModuleSpec) -> None:
        self.original = original

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Create the module, whose names are looked up on access."""
        return ReplacedModule(spec.name, f"Replaces the module of torch; see {MODULES[spec.name]}.")

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module has no code."""
