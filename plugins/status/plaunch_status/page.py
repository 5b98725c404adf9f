"""Pages, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Page:
    """A page: its text, its media type and its HTTP status."""

    text: str | bytes
    kind: str = "text/plain; charset=utf-8"
    status: int = 200


def health_page(silent: float, bound: float) -> Page:
    """Create the page `/healthz`; `silent` is for how many seconds the loop is overdue."""
    if not silent:
        return Page("ok\n")
    return Page(
        f"the agent's loop has not reported for {silent:.0f} s; the limit is {bound:.0f} s\n",
        status=503,
    )
