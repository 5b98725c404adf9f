"""Lazy public names: importing a package does not import all of its modules."""

from __future__ import annotations

import importlib

__all__ = ["TYPE_CHECKING", "attach"]

# Type checkers take it for true, as that of `typing`. Modules on the way of every command line and
# every worker take it from here: importing `typing` takes 8 ms.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def attach(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Build `__getattr__`, `__dir__` and `__all__` of a package whose names load on first use.

    `modules` maps a module below `package` (as in `".process.std"`) to the public names that it
    defines, separated by spaces. A module without any is itself a public name.
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}
    homes |= {name.lstrip("."): name for name, names in modules.items() if not names}

    def __getattr__(name: str) -> object:  # noqa: N807 - the hook of PEP 562
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(home, package)
        value: object = getattr(module, name) if modules[home] else module
        importlib.import_module(package).__dict__[name] = value
        return value

    def __dir__() -> list[str]:  # noqa: N807 - the hook of PEP 562
        return sorted(homes)

    return __getattr__, __dir__, sorted(homes)
