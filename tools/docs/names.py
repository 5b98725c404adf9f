"""The reference of public names: signatures and docstrings, below each `<!-- names: PACKAGE -->`.

Docstrings are Markdown, like the pages; this module converts them for Sphinx.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx

_MARK = re.compile(r"^<!-- names: (\S+) -->$", re.MULTILINE)
_LONGEST_VALUE = 240  # characters
_CODE = re.compile(r"(`[^`]+`)")


def packages(page: str) -> list[str]:
    """Return the packages whose names a page lists, in order."""
    return _MARK.findall(page)


def public_names(package: str) -> list[str]:
    """Return the public names of a package: `__all__`, or the names that it defines.

    Modules are left out.
    """
    module = importlib.import_module(package)
    listed = getattr(module, "__all__", None)
    if listed is None:
        listed = [
            name
            for name, found in vars(module).items()
            if not name.startswith("_")
            and (inspect.isclass(found) or inspect.isfunction(found))
            and f"{found.__module__}.".startswith(f"{package}.")
        ]
    found = [name for name in listed if not inspect.ismodule(getattr(module, name))]
    return sorted(found, key=str.lower)


def _directives(package: str, homes: dict[int, str]) -> Iterator[str]:
    """Return autodoc directives for one package; `homes` maps objects to earlier entries."""
    elsewhere = []
    for name in public_names(package):
        path = f"{package}.{name}"
        found = getattr(importlib.import_module(package), name)
        if _is_second_name(name, found):
            yield f".. py:data:: {path}\n\n   Another name of ``{found.__name__}``.\n"
            continue
        is_described = inspect.isclass(found) or inspect.isroutine(found)
        if is_described and id(found) in homes:
            elsewhere.append(f"* ``{path}`` is :py:obj:`{homes[id(found)]}`.")
            continue
        if is_described:
            homes[id(found)] = path
        if inspect.isclass(found):
            yield f".. autoclass:: {path}\n   :members:\n"
            if issubclass(found, enum.Enum):
                yield "   :undoc-members:\n"
            if found.__bases__ != (object,):
                yield "   :show-inheritance:\n"
        elif inspect.isroutine(found):
            yield f".. autofunction:: {path}\n"
        else:
            yield f".. py:data:: {path}\n{_value(found)}"
    if elsewhere:
        yield "\n".join(["Described elsewhere on this page:", "", *elsewhere, ""])


def _is_second_name(name: str, found: object) -> bool:
    return (
        inspect.isclass(found) and found.__module__.startswith("plaunch") and found.__name__ != name
    )


def _value(found: object) -> str:
    """Return the value of a constant or type alias, if it is short."""
    text = repr(found)
    return "" if len(text) > _LONGEST_VALUE or " at 0x" in text else f"   :value: {text}\n"


def _add_names(_app: Sphinx, _docname: str, source: list[str]) -> None:
    homes: dict[int, str] = {}
    # A name that several packages have is described in the one that is nearest to it, and the
    # top-level package, which is first on the page, has the lowest priority.
    texts = {
        package: "\n".join(_directives(package, homes))
        for package in sorted(packages(source[0]), key=lambda package: -package.count("."))
    }
    source[0] = _MARK.sub(lambda mark: f"```{{eval-rst}}\n{texts[mark[1]]}\n```", source[0])


def to_rst(text: str) -> str:
    """Convert Markdown of docstrings for Sphinx: code in backticks, everything else plain."""
    parts = _CODE.split(text)
    for place, part in enumerate(parts):
        if place % 2:
            parts[place] = f"`{part}`"
            if parts[place + 1][:1].isalnum():
                parts[place] += r"\ "  # as in `Event`s
        else:
            parts[place] = re.sub(r"([*|\\]|_\b)", r"\\\1", part)
    return "".join(parts)


def _read_markdown(*arguments: object) -> None:
    lines = arguments[-1]
    if isinstance(lines, list):
        lines[:] = to_rst("\n".join(lines)).split("\n")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension with Sphinx."""
    app.connect("source-read", _add_names)
    app.connect("autodoc-process-docstring", _read_markdown, priority=100)  # before napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}
