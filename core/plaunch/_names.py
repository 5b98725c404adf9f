"""How a name that was not found is answered: the closest match, and the sorted choices."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def suggest(name: str, choices: Iterable[str]) -> str:
    """The end of an error message about `name`: "; did you mean ...? Choices: ..."."""
    known = sorted(choices)
    if not known:
        return "; there are none to choose from"
    close = closest(name, known)
    hint = "." if close is None else f"; did you mean {close!r}?"
    return f"{hint} Choices: {', '.join(known)}"


def closest(name: str, choices: Iterable[str]) -> str | None:
    """The choice that `name` was probably meant to be: one that it begins, or is nearly alike."""
    from difflib import get_close_matches  # noqa: PLC0415 - errors only

    known = sorted(choices)
    begun = [choice for choice in known if choice.startswith(name)]
    if len(begun) == 1:
        return begun[0]
    return next(iter(get_close_matches(name, known, n=1)), None)
