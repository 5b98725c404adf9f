"""What the documentation promises, where, and what shows it.

A statement is a part of a page, word by word; line breaks do not count. A test is a node id
without parameters, or a module. A run is the name of a tool in `reliability_page.TOOLS`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Promise:
    """One promise.

    Args:
        text: the promise, in one sentence.
        stated: pages with the words that make the promise.
        tests: tests that fail when it is broken.
        runs: tools whose runs would find that.
    """

    text: str
    stated: tuple[tuple[str, str], ...]
    tests: tuple[str, ...]
    runs: tuple[str, ...] = ()


PROMISES: dict[str, tuple[Promise, ...]] = {
    "How a job ends": (
        Promise(
            "All nodes report the same first cause.",
            (
                (
                    "README.md",
                    "The whole job has one attempt number, one restart budget, and one first "
                    "cause in all reports.",
                ),
            ),
            ("tests/membership/test_failures.py",),
            ("simulate",),
        ),
    ),
}
