"""Check of the clock."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from plaunch.doctor import Finding, Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch_doctor.context import NodeContext

_RELEASED = 1735689600.0  # 1 January 2025, before the first release of plaunch
_FAR = 50 * 365 * 86400.0


def check_clock(context: NodeContext) -> Iterator[Finding]:
    """Check that the time is plausible, and that a service synchronises it."""
    now = context.machine.now()
    said = datetime.datetime.fromtimestamp(now, datetime.timezone.utc).strftime(
        "%Y-%m-%d %H:%M UTC"
    )
    if not _RELEASED < now < _RELEASED + _FAR:
        yield Finding(
            Status.PROBLEM,
            "clock",
            said,
            "set the clock: certificates are refused, and logs of several nodes cannot be compared",
        )
        return
    synchronised = context.machine.is_synchronised()
    # Only a warning: plaunch never compares clocks of different hosts.
    if synchronised is False:
        yield Finding(
            Status.WARNING,
            "clock",
            f"{said}, not synchronised, according to the kernel",
            "run chrony, ntpd or systemd-timesyncd on the host; this check cannot compare the "
            "clocks of other nodes",
        )
        return
    kept = (
        "synchronised" if synchronised else "the system does not report whether it is synchronised"
    )
    yield Finding(
        Status.OK, "clock", f"{said}, {kept} (this check cannot compare the clocks of other nodes)"
    )
