"""Calls a function as soon as a module is imported."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class AfterImport:
    """A finder that calls functions when modules are imported, and finds nothing itself.

    Args:
        functions: by module name; called with the module, at once if it is already imported.
    """

    def __init__(self, functions: dict[str, Callable[[Any], None]]) -> None:
        self._functions = dict(functions)

    def begin(self) -> None:
        """Start to watch imports."""
        for name in [name for name in self._functions if name in sys.modules]:
            self._functions.pop(name)(sys.modules[name])
        sys.meta_path.insert(0, self)

    def end(self) -> None:
        """Stop to watch imports."""
        sys.meta_path.remove(self)

    def find_spec(self, name: str, path: object, target: object = None) -> Any:
        """Find a module with the other finders, and make its loader call the function."""
        function = self._functions.pop(name, None)
        if function is None:
            return None
        spec: Any = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _CallbackLoader(spec.loader, function)
        return spec


class _CallbackLoader:
    """Delegates to a module's own loader, and hides itself from the module."""

    def __init__(self, loader: Any, function: Callable[[Any], None]) -> None:
        self._loader = loader
        self._function = function

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._function(module)
