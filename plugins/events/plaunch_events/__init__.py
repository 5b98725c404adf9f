"""Events of a launch: the stream, the queues of its readers, built-in handlers, time accounting.

The handler `null` drops events, `console` prints one line for each, `jsonl` writes them to a file
for programs, and `otel` converts them to traces. A launch imports only what it uses.

The public names are also a library for plugins that read events. They load on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.lazy import attach

if TYPE_CHECKING:
    from plaunch_events.launch_events import EventReaders as EventReaders
    from plaunch_events.launch_events import find_event_handlers as find_event_handlers
    from plaunch_events.launch_events import parse_event_conf as parse_event_conf
    from plaunch_events.launcher_history import PHASES as PHASES
    from plaunch_events.launcher_history import LauncherHistory as LauncherHistory
    from plaunch_events.launcher_history import RoundHistory as RoundHistory
    from plaunch_events.launcher_history import WorkerRun as WorkerRun
    from plaunch_events.launcher_history import worker_state as worker_state
    from plaunch_events.launcher_status import LauncherStatus as LauncherStatus
    from plaunch_events.redaction import WITHHELD as WITHHELD
    from plaunch_events.redaction import Redaction as Redaction
    from plaunch_events.redaction import is_secret as is_secret
    from plaunch_events.redaction import redact_command as redact_command
    from plaunch_events.schema import COMMON_KEYS as COMMON_KEYS
    from plaunch_events.schema import SCHEMA as SCHEMA
    from plaunch_events.schema import EventType as EventType
    from plaunch_events.stream import EventStream as EventStream
    from plaunch_events.time_accounting import RESTART_PARTS as RESTART_PARTS
    from plaunch_events.time_accounting import TIME_CATEGORIES as TIME_CATEGORIES
    from plaunch_events.time_accounting import LaunchPhase as LaunchPhase
    from plaunch_events.time_accounting import TimeAccount as TimeAccount
    from plaunch_events.time_accounting import describe_seconds as describe_seconds
    from plaunch_events.time_accounting import describe_times as describe_times

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        ".launch_events": "EventReaders find_event_handlers parse_event_conf",
        ".launcher_history": "PHASES LauncherHistory RoundHistory WorkerRun worker_state",
        ".launcher_status": "LauncherStatus",
        ".schema": "COMMON_KEYS EventType SCHEMA",
        ".redaction": "Redaction WITHHELD is_secret redact_command",
        ".stream": "EventStream",
        ".time_accounting": (
            "LaunchPhase RESTART_PARTS TIME_CATEGORIES TimeAccount describe_seconds describe_times"
        ),
    },
)
