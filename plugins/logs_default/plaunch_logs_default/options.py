"""The option of log files that rotate."""

from __future__ import annotations

from plaunch.numbers import digits, quote
from plaunch.options import Option

PLUGIN = "plaunch_logs_default.plugin"

SMALLEST = 64 << 10  # bytes of a file; what is written at once
LARGEST = 1 << 60
MOST_FILES = 1000
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def read_rotation(text: str) -> tuple[int, int]:
    """Read `100MB:5`: the most bytes of a log file, and how many older ones are kept of it.

    Raises:
        ValueError: the text has another form, or a number is out of range.
    """
    size, _, count = text.partition(":")
    size = size.strip().upper()
    number = size.rstrip("KMGTIB")
    unit = size[len(number) :].removesuffix("B").removesuffix("I")
    value, kept = digits(number), digits(count.strip(), MOST_FILES)
    if value is None or unit not in _UNITS or not kept:
        raise ValueError(
            f"{quote(text)} is not SIZE:FILES, such as 100MB:5 or 1G:3: the size of a file in "
            f"bytes, or with K, M, G or T (powers of 1024), and 1 to {MOST_FILES} older files"
        )
    most = value * _UNITS[unit]
    if most < SMALLEST:
        raise ValueError(f"{quote(text)} has a size below 64K, the least that a log file may have")
    if most > LARGEST:
        raise ValueError(f"{quote(text)} has a size that no file can have")
    return most, kept


OPTIONS = (
    Option(
        ("--log-rotate",),
        "begin another log file when one of a worker's in --log-dir has this size, and keep so "
        "many older ones: stdout.log.1, stdout.log.2 and so on (default: log files grow)",
        metavar="SIZE:FILES",
        read=read_rotation,
    ),
)
