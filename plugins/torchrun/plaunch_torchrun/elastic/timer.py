"""Timers of workers: a block of code that must end in time."""

from __future__ import annotations

from plaunch.timer import FileTimerClient as FileTimerClient
from plaunch.timer import FileTimerRequest as FileTimerRequest
from plaunch.timer import FileTimerServer as FileTimerServer
from plaunch.timer import LocalTimerClient as LocalTimerClient
from plaunch.timer import LocalTimerServer as LocalTimerServer
from plaunch.timer import MultiprocessingRequestQueue as MultiprocessingRequestQueue
from plaunch.timer import RequestQueue as RequestQueue
from plaunch.timer import TimerClient as TimerClient
from plaunch.timer import TimerRequest as TimerRequest
from plaunch.timer import TimerServer as TimerServer
from plaunch.timer import configure as configure
from plaunch.timer import expires as expires
