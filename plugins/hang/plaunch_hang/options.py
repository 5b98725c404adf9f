"""The options for the detection of hangs, and for stacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.durations import Duration
from plaunch.errors import UsageError
from plaunch.options import Option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch.process import ExitRules

AUTO = "auto"
ACTIONS = ("warn", "restart", "stop")  # the mildest first
DEFAULT_EXCEPTION_TIMEOUT = 30.0  # seconds, with an action
_TIMEOUT = Duration(least=1.0, has_units=True)


def hang_timeout(text: str) -> float | str:
    """Parse a duration such as `10m` into seconds, or `auto`.

    Raises:
        ValueError: the text is neither.
    """
    if text == AUTO:
        return text
    try:
        return _TIMEOUT.parse(text)
    except ValueError as error:
        raise ValueError(f"{error}; or {AUTO}") from None


def exit_rules(options: Mapping[str, object]) -> ExitRules:
    """Return what a launch does about workers that have raised an exception and do not exit.

    Args:
        options: those of the launch, by name.

    Raises:
        UsageError: `exception_timeout` is invalid.
    """
    from plaunch.process import ExitRules  # not on the way to `--help`

    given: object = options.get("exception_timeout")
    if given is None:
        acts = options.get("on_hang") in ACTIONS[1:]
        return ExitRules(
            DEFAULT_EXCEPTION_TIMEOUT if acts else None,
            advice="the job waits for it (--exception-timeout ends the wait)",
        )
    try:
        return ExitRules(_TIMEOUT.parse(str(given)))
    except ValueError as error:
        raise UsageError(f"exception_timeout: {error}") from None


class HangOptions:
    """The options for the detection of hangs."""

    PLUGIN = "plaunch_hang.plugin:Hangs"
    KNOWN_AS = "hang detection"
    EXIT_RULES = "plaunch_hang.options:exit_rules"
    OPTIONS = (
        Option(
            ("--hang-timeout",),
            "report where all ranks are when no worker of the job has made progress for this time, "
            "as in 10m; auto learns the time from the heartbeats of the script (default: off)",
            metavar="DURATION",
            read=hang_timeout,
        ),
        Option(
            ("--on-hang",),
            "what to do then: warn (only report it), restart (all workers, as after a failure) or "
            "stop (end the job) (default: warn; needs --hang-timeout)",
            metavar="ACTION",
            choices=ACTIONS,
        ),
        Option(
            ("--exception-timeout",),
            "how long a worker may take to exit after an uncaught exception, as in 30s; then it "
            "counts as failed (default: 30s with --on-hang=restart or stop, otherwise no limit)",
            metavar="DURATION",
            read=_TIMEOUT.parse,
        ),
    )


class StacksOptions:
    """The options of stacks."""

    PLUGIN = "plaunch_hang.stacks.plugin:Stacks"
    KNOWN_AS = "the collection of stacks"
    ON_SLOW_STOP = "plaunch_hang.stacks.slow_stops:SlowStops"
    OPTIONS = (
        Option(
            ("--stacks-on-failure",),
            "when a worker fails, report the stacks of the others before they are stopped, which "
            "takes up to a second (default: off)",
            read=None,
        ),
        Option(
            ("--flight-recorder",),
            "enable torch's flight recorder: keep the last collective operations of each worker, "
            "dump them to the folder of the run when NCCL times out, and show them beside stacks "
            "(default: off)",
            read=None,
        ),
    )
