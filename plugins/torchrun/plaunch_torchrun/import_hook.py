"""An import hook: programs that import torchrun's modules get plaunch's.

A finder for the names of torchrun's modules is placed before all others. The imported module has
plaunch's functions and, for all other names of torch's module, torch's own objects, which plaunch's
functions accept. torch is imported only when such a name is used.
"""

from __future__ import annotations

import functools
import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from plaunch_torchrun import patches

if TYPE_CHECKING:
    from collections.abc import Sequence

# Names that one of torch's modules imports from another. An earlier replacement reaches it.
_IMPORTED = {
    "torch.distributed.run": ("torch.distributed.launcher.api", ("elastic_launch",)),
    "torch.distributed.launcher": (
        "torch.distributed.launcher.api",
        ("LaunchConfig", "elastic_launch", "launch_agent"),
    ),
}

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

    What the program assigns to names of these modules is used as torchrun uses it, or a launch
    warns that it has no effect: see `plaunch_torchrun.patches`.
    """
    if is_installed():
        return
    sys.meta_path.insert(0, _Finder())
    for name in MODULES:
        original = sys.modules.pop(name, None)
        if original is None:
            continue
        replacement = importlib.import_module(name)
        vars(replacement)["_torch_module"] = original  # not to be executed again
        for each in patches.EFFECTIVE[name]:
            if each in vars(original) and not patches.is_torchs(vars(original)[each]):
                setattr(replacement, each, vars(original)[each])
        parent, _, last = name.rpartition(".")
        setattr(sys.modules[parent], last, replacement)


def is_installed() -> bool:
    """Whether `install` has been called."""
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)


class ReplacedModule(ModuleType):
    """A module with the name of torchrun's and plaunch's functions.

    What is assigned to a name that plaunch's functions look up is assigned to their module, too.
    """

    _torch_module: ModuleType | None = None

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        self._pass_on(name, value)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        self._pass_on(name, _own_values()[MODULES[self.__name__]].get(name))

    def _pass_on(self, name: str, value: object) -> None:
        own = MODULES.get(self.__name__)
        if own is not None and name in patches.EFFECTIVE[self.__name__]:
            own_value = _own_values()[own][name]
            is_torchs_agent = value is not own_value and patches.is_torchs(value)
            setattr(importlib.import_module(own), name, own_value if is_torchs_agent else value)

    def __getattr__(self, name: str) -> Any:
        replacement = importlib.import_module(MODULES[self.__name__])
        if name in replacement.__all__:
            return getattr(replacement, name)
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self.load_torch_module(), name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *importlib.import_module(MODULES[self.__name__]).__all__]

    def load_torch_module(self) -> ModuleType:
        """Return torch's module, and execute it at the first call, outside of `sys.modules`."""
        if self._torch_module is None:
            spec = vars(self)["__loader__"].original
            original = module_from_spec(spec)
            spec.loader.exec_module(original)
            vars(self)["_torch_module"] = original
        return self._torch_module  # type: ignore[return-value]


@functools.cache
def _own_values() -> dict[str, dict[str, object]]:
    """Return the names of plaunch's modules as they were before a program replaced any."""
    return {name: dict(vars(importlib.import_module(name))) for name in {*MODULES.values()}}


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
        """Take over what the program has assigned to names that torch's module imports."""
        source, names = _IMPORTED.get(module.__name__, ("", ()))
        assigned = vars(sys.modules[source]) if source in sys.modules else {}
        for name in names:
            if name in assigned:
                setattr(module, name, assigned[name])
