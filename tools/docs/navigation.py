"""The navigation of the site: the links of docs/index.md, under its headings and in order."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx

_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#:]+\.md)\)")


def sections(index: str) -> Iterator[tuple[str, list[str]]]:
    """Return the headings of the start page, each with the pages that are first linked below it."""
    seen: set[str] = set()
    parts = _HEADING.split(index)[1:]
    for heading, text in zip(parts[::2], parts[1::2], strict=True):
        pages = [page for page in dict.fromkeys(_LINK.findall(text)) if page not in seen]
        seen.update(pages)
        if pages:
            yield heading, pages


def _add_navigation(app: Sphinx, docname: str, source: list[str]) -> None:
    if docname != app.config.root_doc:
        return
    folder = posixpath.dirname(docname)
    for heading, pages in sections(source[0]):
        names = "\n".join(f"/{posixpath.normpath(posixpath.join(folder, p))}" for p in pages)
        source[0] += f"\n\n```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{names}\n```\n"


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension with Sphinx."""
    app.connect("source-read", _add_navigation)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
