"""The default logs spec: torchrun's folder layout, but given log directories are never removed.

The package `streams` carries the workers' output there. Every command line imports this package, so
its public name loads on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plaunch_logs_default.specs import DefaultLogsSpecs as DefaultLogsSpecs

__all__ = ["DefaultLogsSpecs"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from plaunch_logs_default.specs import DefaultLogsSpecs

    return DefaultLogsSpecs
