"""What the kernel says this process does at signals; Python knows only what it has done itself."""

from __future__ import annotations

import os

STATUS = "/proc/self/status"
_BYTES = 8192


def read_masks(path: str = STATUS) -> tuple[int, int] | None:
    """The masks of what is ignored and what is caught, with bit n-1 for signal n.

    None where the kernel does not tell, or no descriptor is left to ask it.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.read(fd, _BYTES)
        return _mask(status, b"SigIgn:"), _mask(status, b"SigCgt:")
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)


def _mask(status: bytes, field: bytes) -> int:
    _, _, rest = status.partition(field)
    value = rest.partition(b"\n")[0].strip()
    return int(value, 16) if value else 0
