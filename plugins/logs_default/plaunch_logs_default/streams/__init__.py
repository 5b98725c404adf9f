"""Carries the workers' output to files and to the console, which may be slow.

Every public name loads on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.lazy import attach

if TYPE_CHECKING:
    from plaunch_logs_default.streams.routes import StreamsError as StreamsError
    from plaunch_logs_default.streams.worker_streams import WorkerStreams as WorkerStreams
    from plaunch_logs_default.streams.worker_streams import (
        open_worker_streams as open_worker_streams,
    )

__getattr__, __dir__, __all__ = attach(
    __name__,
    {".routes": "StreamsError", ".worker_streams": "WorkerStreams open_worker_streams"},
)
