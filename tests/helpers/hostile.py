"""Texts that others may send: for a terminal, for a reader, and for the memory."""

from __future__ import annotations

from plaunch.texts import MOST_CHARS

FORGED = "plaunch: the job has succeeded"
# What terminals interpret: ESC, CSI, OSC, their eight-bit forms, and what moves the cursor or
# changes the order of letters.
_CONTROLS = (
    "\x1b[2J\x1b[31mred",
    "\x1b]0;title\x07",
    "\x9b2J\x9d0;title\x9c",
    "\u202etxet\u2066",
    "rank 0 failed\rrank 0 is fine",
    "bad\b\b\bgood",
    "nul\x00\x7f",
)
CONTROLS = " ".join(_CONTROLS)
HOSTILE = (*_CONTROLS, f"refused\n{FORGED}", "x" * (1 << 20), f"{CONTROLS}\n{FORGED}\n" * 20_000)


def assert_harmless(text: str, most: int = 4 * MOST_CHARS) -> None:
    """Check a text that stands in a message: what a terminal interprets, its lines, its length."""
    assert len(text) <= most, f"{len(text)} characters"
    for line in text.split("\n"):
        assert line.replace("\t", "").replace("\u00a0", "").replace("\u3000", "").isprintable(), (
            repr(line[:200])
        )
    for line in text.split("\n")[1:]:
        assert not line.startswith("plaunch:"), repr(line[:200])
