"""Tracebacks as Python writes them, and workers that ended after them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.process import ProcessFailure

if TYPE_CHECKING:
    from collections.abc import Sequence

HEADER = "Traceback (most recent call last):"
TORCH = "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py"
DIRECT = "The above exception was the direct cause of the following exception:"
WHILE = "During handling of the above exception, another exception occurred:"


def frames(path: str, *lines: int) -> list[str]:
    """Return stack entries at some lines of a file, with their source."""
    return [
        text for line in lines for text in (f'  File "{path}", line {line}, in f', f"    f{line}()")
    ]


def failure_with(last_lines: Sequence[str], exitcode: int = 1, rank: int = 0) -> ProcessFailure:
    """Return the failure of a worker with these last lines and no error file."""
    more = {"global_rank": rank, "last_lines": list(last_lines)}
    return ProcessFailure(rank, 7 + rank, exitcode, "", **more)
