"""The options of the restart policies. Their readers are imported if one of them is given."""

from __future__ import annotations

from plaunch.lazy import TYPE_CHECKING
from plaunch.options import Option

if TYPE_CHECKING:
    from plaunch_restarts.values import Conditions, CrashLoop, Delay, Window


def window(text: str) -> Window:
    """Read `1h`."""
    from plaunch_restarts.values import read_window  # only with the option

    return read_window(text)


def delay(text: str) -> Delay:
    """Read `5s`, or `1s:60s`."""
    from plaunch_restarts.values import read_delay

    return read_delay(text)


def conditions(text: str) -> Conditions:
    """Read `exit:2,exit:64-78,signal:SIGABRT,exception:ConfigError,oom`."""
    from plaunch_restarts.values import read_conditions

    return read_conditions(text)


def crash_loop(text: str) -> CrashLoop:
    """Read `3/30s`, or `off`."""
    from plaunch_restarts.values import read_crash_loop

    return read_crash_loop(text)


def failure_count(text: str) -> int:
    """Read a number of failures, from 1."""
    from plaunch_restarts.values import read_failure_count

    return read_failure_count(text)


OPTIONS = (
    Option(
        ("--restart-window",),
        "count only restarts within this time against --max-restarts, as in 1h (default: all)",
        metavar="DURATION",
        read=window,
    ),
    Option(
        ("--restart-delay",),
        "delay before a restart: 5s is constant; with 1s:60s the first restart has no delay, then "
        "it doubles from 1 to 60 seconds (default: 0)",
        metavar="DURATION[:MAX]",
        read=delay,
    ),
    Option(
        ("--no-restart-on",),
        "end the job if the first failure is one of these: exit:CODE, exit:A-B, signal:NAME, "
        "exception:NAME, or a cause: worker, oom, node, hang, health (default: none)",
        metavar="WHAT,...",
        read=conditions,
    ),
    Option(
        ("--restart-on",),
        "of the failures of workers, restart only after these; same format (default: all)",
        metavar="WHAT,...",
        read=conditions,
    ),
    Option(
        ("--crash-loop",),
        "end the job if the same failure occurs N times in a row, each within DURATION of the "
        "start, as in 3/30s, or off (default: 3/30s with more than 3 restarts, else off)",
        metavar="N/DURATION",
        read=crash_loop,
    ),
    Option(
        ("--exclude-node-after",),
        "exclude a node after this many failures that started there (default: never)",
        metavar="N",
        read=failure_count,
    ),
)
