"""The options of the watch for hangs."""

from __future__ import annotations

from plaunch.durations import Duration
from plaunch.options import Option

PLUGIN = "plaunch_hang.plugin:Hangs"

AUTO = "auto"
ACTIONS = ("warn", "restart", "stop")  # the mildest first
_TIMEOUT = Duration(least=1.0, has_units=True)


def hang_timeout(text: str) -> float | str:
    """Read `10m`, in seconds, or `auto`.

    Raises:
        ValueError: it is neither.
    """
    if text == AUTO:
        return text
    try:
        return _TIMEOUT.parse(text)
    except ValueError as error:
        raise ValueError(f"{error}; or {AUTO}") from None


OPTIONS = (
    Option(
        ("--hang-timeout",),
        "say where all ranks are once no worker of the job has moved for so long, as in 10m; auto "
        "learns how long from the heartbeats of the script (default: off)",
        metavar="DURATION",
        read=hang_timeout,
    ),
    Option(
        ("--on-hang",),
        "what follows then: only say it, restart all workers as after a failure, or end the job "
        "(default: warn; needs --hang-timeout)",
        metavar="ACTION",
        choices=ACTIONS,
    ),
)
