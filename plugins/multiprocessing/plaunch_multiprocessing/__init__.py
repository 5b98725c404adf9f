"""Function workers: the context that starts them, the code inside them, their return values.

Every public name loads on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.lazy import attach

if TYPE_CHECKING:
    from plaunch_multiprocessing.context import MultiprocessContext as MultiprocessContext

__getattr__, __dir__, __all__ = attach(__name__, {".context": "MultiprocessContext"})
