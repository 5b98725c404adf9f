"""Sizes in words."""

from __future__ import annotations

MIB = 1 << 20
GIB = 1 << 30


def say_bytes(size: int) -> str:
    """A size as people write it: 64 MiB, 1.5 GiB."""
    for unit, name in ((1 << 40, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}" if size < 1000 * unit else f"{size // unit} {name}"
    return f"{size} bytes"
