"""Timers of workers: a block of code that must end in time."""

from __future__ import annotations

from plaunch_timer import FileTimerClient as FileTimerClient
from plaunch_timer import FileTimerRequest as FileTimerRequest
from plaunch_timer import FileTimerServer as FileTimerServer
from plaunch_timer import LocalTimerClient as LocalTimerClient
from plaunch_timer import LocalTimerServer as LocalTimerServer
from plaunch_timer import MultiprocessingRequestQueue as MultiprocessingRequestQueue
from plaunch_timer import RequestQueue as RequestQueue
from plaunch_timer import TimerClient as TimerClient
from plaunch_timer import TimerRequest as TimerRequest
from plaunch_timer import TimerServer as TimerServer
from plaunch_timer import configure as configure
from plaunch_timer import expires as expires
