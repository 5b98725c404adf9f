"""The default logs spec: torchrun's folders, without its removals.

The package `streams` carries the workers' output there. The public name loads on first use, as this
package is on every command line's way.
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
