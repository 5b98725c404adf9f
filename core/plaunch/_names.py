"""How a name that was not found is answered: the closest match, and the sorted choices."""

from __future__ import annotations

from collections.abc import Iterable


def suggest(name: str, choices: Iterable[str]) -> str:
    """The end of an error message about `name`: "; did you mean ...? Choices: ..."."""
    from difflib import get_close_matches  # noqa: PLC0415 - errors only

    known = sorted(choices)
    if not known:
        return "; there are none to choose from"
    close = get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    return f"{hint} Choices: {', '.join(known)}"
