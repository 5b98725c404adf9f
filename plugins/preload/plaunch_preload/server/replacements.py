"""Replaces functions of other modules during imports."""

from __future__ import annotations

import sys
from typing import Any


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
        """Restore all attributes, and copies by statements such as `from os import urandom`."""
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
        self._originals.clear()
