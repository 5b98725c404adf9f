"""The events of a launch, made from what its agent notifies of, and the built-in handlers of them.

`null` drops events, `console` prints one line for each, `jsonl` writes a file for programs, and
`otel` makes traces of them. A launch imports what it uses.

Every public name loads on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.lazy import attach

if TYPE_CHECKING:
    from plaunch_events.stream import EventStream as EventStream

__getattr__, __dir__, __all__ = attach(__name__, {".stream": "EventStream"})
