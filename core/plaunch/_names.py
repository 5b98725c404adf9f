"""Names: suggestions for misspelt ones, Python programs, classes of components."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_CLOSE = (
    0.75  # difflib's similarity from 0 to 1: one or two typing errors in a word of usual length
)


def suggest(name: str, choices: Iterable[str], *, otherwise: str = "") -> str:
    """Return the end of an error message about `name`: "; did you mean ...? Choices: ...".

    `otherwise` is appended if no choice is similar.
    """
    known = sorted(choices)
    if not known:
        return f"; no choices are available{otherwise}"
    meant = did_you_mean(name, known)
    return f"{meant or '.'} Choices: {', '.join(known)}{'' if meant else otherwise}"


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return "; did you mean ...?" for an error message; empty if no choice is similar."""
    close = closest(name, choices)
    if close is None:
        return ""
    return f"; did you mean {close if close.startswith('-') else repr(close)}?"


def closest(name: str, choices: Iterable[str]) -> str | None:
    """Return the choice that begins with `name` or is most similar to it, or None.

    Ignores case, leading dashes, and the difference between dashes and underscores.
    """
    from difflib import get_close_matches  # errors only

    word = _word(name)
    known = {_word(choice): choice for choice in sorted(choices, reverse=True)}
    begun = [text for text in known if text.startswith(word)] if len(word) > 1 else []
    if len(begun) == 1:
        return known[begun[0]]
    return next((known[text] for text in get_close_matches(word, known, 1, _CLOSE)), None)


def _word(name: str) -> str:
    return name.lower().strip("-_").replace("_", "-")


def is_python(program: str) -> bool:
    """Whether a program is a Python interpreter, by its file name."""
    return os.path.basename(program).rstrip("0123456789.td") == "python"


def class_name(component: object) -> str:
    """Return the class of a component with its module, for messages: `acme.Streams`."""
    kind = type(component)
    return f"{kind.__module__}.{kind.__qualname__}"
