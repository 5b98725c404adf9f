"""What makes the value of an option of its text; what cannot be one is refused with a reason."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from plaunch.numbers import digits, quote, whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.durations import Duration


def integer(text: str) -> int:
    """A whole number."""
    try:
        return whole(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def seconds(duration: Duration) -> Callable[[str], float]:
    """Reads a duration of this sort."""

    def read(text: str) -> float:
        try:
            return duration.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def port(text: str) -> int:
    """A port number; 0 is one."""
    number = digits(text, 65535)
    if number is None:
        raise argparse.ArgumentTypeError(f"{quote(text)} is not a port number from 0 to 65535")
    return number


def port_range(text: str) -> tuple[int, int]:
    """`29500-29599`: the first and the last port of a range."""
    low, _, high = text.partition("-")
    first, last = digits(low), digits(high)
    if first is None or last is None:
        raise argparse.ArgumentTypeError(
            f"{quote(text)} is not a range of ports, such as 29500-29599"
        )
    if not 0 < first <= last <= 65535:
        raise argparse.ArgumentTypeError(
            f"{quote(text)} is not a range of ports between 1 and 65535, smallest first"
        )
    return first, last


def words(text: str) -> list[str]:
    """Words between commas; a doubled comma is a comma of a word, as in torchrun."""
    parts = text.replace(",,", "\0").split(",")
    return [part.replace("\0", ",") for part in parts if part]
