"""The option of log files that rotate."""

from __future__ import annotations

from plaunch.numbers import digits, quote
from plaunch.options import Option

PLUGIN = "plaunch_logs_default.plugin"
KNOWN_AS = "the rotation of log files"

MIN_SIZE = 64 << 10  # bytes; the largest single write
MAX_SIZE = 1 << 60  # bytes
MAX_FILES = 1000
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def read_rotation(text: str) -> tuple[int, int]:
    """Parse `100MB:5`: the maximum size of a log file in bytes, and how many older files to keep.

    Raises:
        ValueError: the text has another form, or a number is out of range.
    """
    size, _, count = text.partition(":")
    size = size.strip().upper()
    number = size.rstrip("KMGTIB")
    unit = size[len(number) :].removesuffix("B").removesuffix("I")
    value, kept = digits(number), digits(count.strip(), MAX_FILES)
    if value is None or unit not in _UNITS or not kept:
        raise ValueError(
            f"{quote(text)} is not SIZE:FILES, such as 100MB:5 or 1G:3: the size of a file in "
            f"bytes, or with K, M, G or T (powers of 1024), and 1 to {MAX_FILES} older files"
        )
    max_size = value * _UNITS[unit]
    if max_size < MIN_SIZE:
        raise ValueError(f"{quote(text)} has a size below 64K, the minimum for a log file")
    if max_size > MAX_SIZE:
        raise ValueError(f"{quote(text)} has a size that no file can have")
    return max_size, kept


OPTIONS = (
    Option(
        ("--log-rotate",),
        "rotate the workers' log files in --log-dir at this size, and keep this many older files: "
        "stdout.log.1, stdout.log.2 and so on (default: no rotation)",
        metavar="SIZE:FILES",
        read=read_rotation,
    ),
)
