"""Timers of workers: if a block of code does not end in time, its worker is killed.

Names are torchrun's. With `TORCHELASTIC_ENABLE_FILE_TIMER=1` the agent runs a `FileTimerServer` for
its workers, which accepts torch's `FileTimerClient` and plaunch's.

Every public name loads on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.lazy import attach

if TYPE_CHECKING:
    from plaunch_torchrun.elastic.timer.api import RequestQueue as RequestQueue
    from plaunch_torchrun.elastic.timer.api import TimerClient as TimerClient
    from plaunch_torchrun.elastic.timer.api import TimerRequest as TimerRequest
    from plaunch_torchrun.elastic.timer.api import TimerServer as TimerServer
    from plaunch_torchrun.elastic.timer.api import configure as configure
    from plaunch_torchrun.elastic.timer.api import expires as expires
    from plaunch_torchrun.elastic.timer.files import FileTimerClient as FileTimerClient
    from plaunch_torchrun.elastic.timer.files import FileTimerRequest as FileTimerRequest
    from plaunch_torchrun.elastic.timer.queues import LocalTimerClient as LocalTimerClient
    from plaunch_torchrun.elastic.timer.queues import LocalTimerServer as LocalTimerServer
    from plaunch_torchrun.elastic.timer.queues import (
        MultiprocessingRequestQueue as MultiprocessingRequestQueue,
    )
    from plaunch_torchrun.elastic.timer.server import FileTimerServer as FileTimerServer

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        ".api": "RequestQueue TimerClient TimerRequest TimerServer configure expires",
        ".files": "FileTimerClient FileTimerRequest",
        ".queues": "LocalTimerClient LocalTimerServer MultiprocessingRequestQueue",
        ".server": "FileTimerServer",
    },
)
