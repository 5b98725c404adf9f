"""Replaces functions of other modules during imports, also as soon as a module is imported."""

from __future__ import annotations

import importlib.util
import sys
from types import MethodType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Replacements:
    """Replaces attributes of modules and classes, and restores them."""

    def __init__(self) -> None:
        self._restored: list[tuple[Any, str, Any]] = []
        self._originals: dict[int, tuple[Any, Any]] = {}  # by the id of the replacement

    def replace(self, owner: Any, name: str, replacement: Any) -> None:
        """Replace an attribute.

        Args:
            owner: a module or a class.
            name: the attribute; a class may inherit it.
            replacement: its value until `restore`.
        """
        self._restored.append((owner, name, vars(owner).get(name)))
        self._originals[id(replacement)] = replacement, getattr(owner, name)
        setattr(owner, name, replacement)

    def restore(self) -> None:
        """Restore all attributes, and copies of them.

        Statements such as `from os import urandom` and `draw = GENERATOR.random` make copies.
        """
        while self._restored:
            owner, name, own = self._restored.pop()
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
        for module in list(sys.modules.values()):
            # `vars` of a lazy module would import it.
            try:
                names = object.__getattribute__(module, "__dict__")
            except AttributeError:
                continue
            for name, value in list(names.items()):
                if id(value) in self._originals:
                    names[name] = self._originals[id(value)][1]
                elif type(value) is MethodType and id(value.__func__) in self._originals:
                    original = self._originals[id(value.__func__)][1]
                    names[name] = original.__get__(value.__self__)
        self._originals.clear()


class AfterImport:
    """A finder that calls functions when modules are imported, and finds nothing itself.

    Args:
        functions: by module name; called with the module, immediately if it is already imported.
    """

    def __init__(self, functions: dict[str, Callable[[Any], None]]) -> None:
        self._functions = dict(functions)

    def begin(self) -> None:
        """Start watching imports."""
        for name in [name for name in self._functions if name in sys.modules]:
            self._functions.pop(name)(sys.modules[name])
        sys.meta_path.insert(0, self)

    def end(self) -> None:
        """Stop watching imports."""
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
