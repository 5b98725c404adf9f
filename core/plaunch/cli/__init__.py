"""The command line: `main` is the process boundary, `run` raises and returns."""

from __future__ import annotations

from plaunch.lazy import attach

TYPE_CHECKING = False  # as in plaunch itself
if TYPE_CHECKING:
    from plaunch.cli.entry import entry_point as entry_point
    from plaunch.cli.invocation import Invocation as Invocation
    from plaunch.cli.program import main as main
    from plaunch.cli.program import run as run

__getattr__, __dir__, __all__ = attach(
    __name__, {".entry": "entry_point", ".invocation": "Invocation", ".program": "main run"}
)
