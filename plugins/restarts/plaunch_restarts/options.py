"""The options of the restart policies. Their readers are imported if one of them is given."""

from __future__ import annotations

from plaunch.lazy import TYPE_CHECKING
from plaunch.options import Option

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def _reader(name: str) -> Callable[[str], Any]:
    """A reader that imports the function `name` of `values` when it is called."""

    def read(text: str) -> Any:
        from plaunch_restarts import values  # only with an option

        return getattr(values, name)(text)

    return read


_read_conditions = _reader("read_conditions")

OPTIONS = (
    Option(
        ("--restart-window",),
        "count only restarts within this time against --max-restarts, as in 1h (default: all)",
        metavar="DURATION",
        read=_reader("read_window"),
    ),
    Option(
        ("--restart-delay",),
        "delay before a restart: 5s is constant; with 1s:60s the first restart has no delay, then "
        "it doubles from 1 to 60 seconds (default: 0)",
        metavar="DURATION[:MAX]",
        read=_reader("read_delay"),
    ),
    Option(
        ("--no-restart-on",),
        "end the job if the first failure is one of these: exit:CODE, exit:A-B, signal:NAME, "
        "exception:NAME, or a cause: worker, oom, node, hang, health (default: none)",
        metavar="WHAT,...",
        read=_read_conditions,
    ),
    Option(
        ("--restart-on",),
        "of the failures of workers, restart only after these; same format (default: all)",
        metavar="WHAT,...",
        read=_read_conditions,
    ),
    Option(
        ("--crash-loop",),
        "end the job if the same failure occurs N times in a row, each within DURATION of the "
        "start, as in 3/30s, or off (default: 3/30s with more than 3 restarts, else off)",
        metavar="N/DURATION",
        read=_reader("read_crash_loop"),
    ),
    Option(
        ("--exclude-node-after",),
        "exclude a node after this many failures that started there (default: never)",
        metavar="N",
        read=_reader("read_failure_count"),
    ),
)
