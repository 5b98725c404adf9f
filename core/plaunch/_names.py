"""What names tell: what was probably meant, whether a program is Python, whose a component is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_CLOSE = 0.75  # of difflib's likeness from 0 to 1: one or two slips in a word of usual length


def suggest(name: str, choices: Iterable[str], *, otherwise: str = "") -> str:
    """The end of an error message about `name`: "; did you mean ...? Choices: ...".

    `otherwise` stands at its very end if no choice is close.
    """
    known = sorted(choices)
    if not known:
        return f"; no choices are available{otherwise}"
    meant = did_you_mean(name, known)
    return f"{meant or '.'} Choices: {', '.join(known)}{'' if meant else otherwise}"


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """The end of an error message about `name`: "; did you mean ...?"; empty if none is close."""
    close = closest(name, choices)
    if close is None:
        return ""
    return f"; did you mean {close if close.startswith('-') else repr(close)}?"


def closest(name: str, choices: Iterable[str]) -> str | None:
    """The choice that `name` was probably meant to be: one that it begins, or is nearly alike.

    Dashes, underscores and case do not count: it is words that are compared.
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
    """Whether the path of a program is that of a Python interpreter, by its name."""
    return os.path.basename(program).rstrip("0123456789.td") == "python"


def class_name(component: object) -> str:
    """The class of a component with its module, for messages about a plugin's: `acme.Streams`."""
    kind = type(component)
    return f"{kind.__module__}.{kind.__qualname__}"
