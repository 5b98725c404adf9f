"""Sphinx extension: names of files above code blocks, and additional search words.

`<!-- search: WORD, WORD -->` below a title adds words by which the search finds the page,
before other pages.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_FILE = re.compile(
    r"^<!-- file: (?P<mark>\S+) -->\n+```(?P<marked>\w+)$"
    r"|^```(?P<titled>\w+) title=\"(?P<title>[^\"]+)\"$",
    re.MULTILINE,
)
_SEARCH = re.compile(r"^<!-- search: (.+) -->$", re.MULTILINE)
# Sphinx's search ignores numbers unless they are in the index.
_CODES_PAGE = "docs/errors"
_CODES_HEADING = "## Exit codes\n"


def with_captions(page: str) -> str:
    """Insert the name of each file above its code block."""

    def block(found: re.Match[str]) -> str:
        language, name = found["marked"] or found["titled"], found["mark"] or found["title"]
        return f"```{{code-block}} {language}\n:caption: {name}\n"

    return _FILE.sub(block, page)


def exit_codes(page: str) -> list[int]:
    """Return the codes in the table of exit codes, and its examples for signals."""
    _, _, rest = page.partition(_CODES_HEADING)
    table, _, _ = rest.partition("\n\n## ")
    found = re.findall(r"^\| (\d+) \||\b(\d{3}) for\b", table, re.MULTILINE)
    return sorted(int(code or example) for code, example in found)


def with_index(page: str) -> str:
    """Add the page's search words to the index."""
    return _SEARCH.sub(lambda found: _index(found[1].split(", ")), page)


def with_codes(page: str) -> str:
    """Add each exit code to the index."""
    index = _index([str(code) for code in exit_codes(page)])
    return page.replace(_CODES_HEADING, f"{_CODES_HEADING}\n{index}\n", 1)


def _index(words: list[str]) -> str:
    entries = "".join(f"   ! single: {word}\n" for word in words)  # `!`: shown before others
    return f"```{{eval-rst}}\n.. index::\n{entries}```"


def _add(_app: Sphinx, docname: str, source: list[str]) -> None:
    source[0] = with_index(with_captions(source[0]))
    if docname == _CODES_PAGE:
        source[0] = with_codes(source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension with Sphinx."""
    app.connect("source-read", _add)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
