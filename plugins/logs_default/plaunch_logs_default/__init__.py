"""The default logs spec: torchrun's folder layout, but given log directories are never removed.

The package `streams` carries the workers' output there. Every command line imports this package, so
its public name loads on first use.
"""

from __future__ import annotations

from plaunch.lazy import TYPE_CHECKING, attach

if TYPE_CHECKING:
    from plaunch_logs_default.specs import DefaultLogsSpecs as DefaultLogsSpecs

__getattr__, __dir__, __all__ = attach(__name__, {".specs": "DefaultLogsSpecs"})
