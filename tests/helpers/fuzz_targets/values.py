"""Values of options: durations, numbers, ranks, sizes, faults, policies."""

from __future__ import annotations

import math
from functools import cache

from plaunch.cli.options import OPTIONS
from plaunch.durations import LIMIT, PATIENCE, PERIOD, Duration, format_duration, milliseconds
from plaunch.numbers import format_ranks, parse_ranks
from plaunch.plugin.metadata import scan
from plaunch.plugin.options import Installed, Selection
from plaunch.texts import printable_message

from helpers.fuzz_targets import Finding
from helpers.fuzz_targets.reading import Choices, check_equal, check_message

MAX_LENGTH = 512
WORDS = (
    b"1h", b"2m30s", b"1.5s", b"inf", b"nan", b"1e9", b"0-3,8", b"kill:rank=1,after=30s",
    b"exit:rank=any,code=3", b"stop:agent,for=5s,node=", b"signal=SIGSEGV", b"chance=0.5", b"seed=",
    b"step-file=", b"3/1h", b"10s:2:5m", b"exit_code=", b"cause=", b"0-1048576", b"1:4", b"gpu",
    b"every=", b"times=inf", b"hang:rank=0", b"127.0.0.1:", b"29500-29599", b",,", b"=",
)  # fmt: skip
_UNITS = Duration(has_units=True, may_be_zero=True)
_DURATIONS = (PERIOD, LIMIT, PATIENCE, _UNITS)


@cache
def _readers():
    """Return the parsers of all options, those of plugins too."""
    entries = scan(["plaunch.options"])
    plugins, _ = Installed(entries, Selection([], {})).options()
    options = [*OPTIONS, *(option for plugin in plugins for option in plugin.options)]
    return sorted(options, key=lambda option: option.names)


def check(data):
    """Parse a value; what cannot be parsed is a ValueError with a short message."""
    choices = Choices(data)
    kind = choices.number(4)
    try:
        if kind == 0:
            _check_ranks(choices.rest.decode("utf-8", "surrogateescape"))
        elif kind == 1:
            duration = choices.one_of(_DURATIONS)
            _check_duration(duration, choices.rest.decode("utf-8", "surrogateescape"))
        else:
            option = choices.one_of(_readers())
            option.value_of(choices.rest.decode("utf-8", "surrogateescape"))
    except ValueError as error:
        check_message(printable_message(str(error)), 4000)  # as the console shows it


def _check_ranks(text):
    ranks = parse_ranks(text)
    if not ranks or min(ranks) < 0:
        raise Finding(f"ranks {ranks}")
    check_equal(parse_ranks(format_ranks(ranks)), ranks, "ranks")


def _check_duration(duration, text):
    seconds = duration.parse(text)
    if math.isnan(seconds) or seconds < 0:
        raise Finding(f"{seconds} seconds")
    milliseconds(seconds)
    if duration is _UNITS and 1e-3 < seconds < 1e9:
        again = duration.parse(format_duration(seconds))
        if not math.isclose(again, seconds, rel_tol=1e-9, abs_tol=1e-6):
            raise Finding(f"{seconds!r} s are {format_duration(seconds)!r}, which are {again!r} s")
