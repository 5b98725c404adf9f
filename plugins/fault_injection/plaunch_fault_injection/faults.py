"""Faults as data, and the parser of `--inject`: `KIND:TARGET,KEY=VALUE,...;...`."""

from __future__ import annotations

import math
import signal
from typing import TYPE_CHECKING, Any, NamedTuple

from plaunch.durations import Duration
from plaunch.numbers import digits, quote

if TYPE_CHECKING:
    from collections.abc import Callable

ANY = -1  # instead of a rank: chosen at random


class Fault(NamedTuple):
    """One fault.

    Args:
        text: the text that the user gave.
        kind: `kill`, `stop`, `exit` or `hang`.
        is_agent: whether the target is a launcher; otherwise it is a worker.
        rank: the global rank of the worker, or the group rank of the launcher's node. ANY for a
            random one, None for the launchers of all nodes, or of `node`.
        node: the host of the launcher; empty if not given.
        signum: the signal of `kill`.
        code: the exit code of `exit`.
        seconds: the duration of `stop`.
        after: seconds since the workers' start.
        every: seconds between two occasions; None if not repeated in a round.
        step_file: the file whose changes are the occasions; empty to use the clock.
        chance: the probability on each occasion.
        seed: seed of the random choices; None if not given.
        times: maximum number of times in one launch.
        attempt: the attempt to which the fault is limited; None for all.
    """

    text: str
    kind: str
    is_agent: bool
    rank: int | None = None
    node: str = ""
    signum: signal.Signals = signal.SIGKILL
    code: int = 0
    seconds: float = 0.0
    after: float = 0.0
    every: float | None = None
    step_file: str = ""
    chance: float = 1.0
    seed: int | None = None
    times: float = 1
    attempt: int | None = None

    @property
    def is_random(self) -> bool:
        """Whether anything is chosen at random."""
        return self.rank == ANY or self.chance < 1


_TARGETS = {
    "exit": ("rank",),
    "hang": ("rank",),
    "kill": ("agent", "rank"),
    "stop": ("agent", "rank"),
}
# Keys by kind: required, and specific to it.
_REQUIRED = {"exit": ("code",), "stop": ("for",)}
_SPECIFIC = {"exit": ("code",), "kill": ("signal",), "stop": ("for",)}
_WHICH_NODE = ("node", "group-rank")
_WHEN = ("after", "every", "step-file")
_COMMON = (*_WHEN, "attempt", "chance", "seed", "times")
# The signals that by default end a process.
_DEADLY = "ABRT ALRM BUS FPE HUP ILL INT KILL PIPE QUIT SEGV SYS TERM TRAP USR1 USR2 XCPU XFSZ"
_SIGNALS = {f"SIG{name}": signal.Signals[f"SIG{name}"] for name in _DEADLY.split()}

_MOMENT = Duration(may_be_zero=True, has_units=True)
_SPAN = Duration(has_units=True)
_FORM = "KIND:TARGET,KEY=VALUE,... as in kill:rank=1,after=30s"


def parse_faults(text: str) -> tuple[Fault, ...]:
    """Parse faults that are separated by `;`.

    Raises:
        ValueError: a fault is malformed; the message names it, and the choices.
    """
    parts = [part.strip() for part in text.split(";")]
    if not all(parts):
        raise ValueError(f"{quote(text)} has an empty fault; write {_FORM}, and ';' between two")
    return tuple(map(_parse_fault, parts))


def _parse_fault(text: str) -> Fault:
    try:
        return _parse_parts(text)
    except ValueError as error:
        raise ValueError(f"fault {quote(text)}: {error}") from None


def _parse_parts(text: str) -> Fault:
    kind, colon, rest = text.partition(":")
    if kind not in _TARGETS:
        raise ValueError(f"unknown fault {quote(kind)}; choose from {', '.join(_TARGETS)}")
    if not colon:
        raise ValueError(f"it has no target; write {_FORM}")
    target, *words = rest.split(",")
    name, equals, rank = target.partition("=")
    is_agent = name == "agent"
    if name not in _TARGETS[kind] or is_agent == bool(equals):
        forms = {"agent": "agent", "rank": "rank=N or rank=any"}
        known = " or ".join(forms[name] for name in _TARGETS[kind])
        raise ValueError(f"{quote(target)} is not a target of {kind}; write {known}")
    allowed = (*_SPECIFIC.get(kind, ()), *(_WHICH_NODE if is_agent else ()), *_COMMON)
    given = _read_values(words, kind, allowed)
    _check(kind, given)
    fault = Fault(text, kind, is_agent, **{_FIELDS.get(key, key): given[key] for key in given})
    if not is_agent:
        fault = fault._replace(rank=_read_rank(rank))
    if fault.seed is not None and not fault.is_random:
        raise ValueError(
            "'seed' has no effect without random choices; use it with 'chance' or a rank 'any'"
        )
    return fault


def _read_values(words: list[str], kind: str, allowed: tuple[str, ...]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.strip().partition("=")
        if key not in allowed:
            raise ValueError(
                f"unknown key {quote(key)} for this {kind}; choose from "
                f"{', '.join(sorted(allowed))}"
            )
        if not equals or not value:
            raise ValueError(f"{key!r} has no value")
        if key in given:
            raise ValueError(f"{key!r} is given twice")
        try:
            given[key] = _READERS[key](value)
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from None
    return given


def _check(kind: str, given: dict[str, Any]) -> None:
    for key in _REQUIRED.get(kind, ()):
        if key not in given:
            raise ValueError(f"it needs {key!r}")
    for keys, what in ((_WHEN, "when"), (_WHICH_NODE, "which node")):
        both = [repr(key) for key in keys if key in given]
        if len(both) > 1:
            raise ValueError(f"{' and '.join(both)} both say {what}; give one of them")


def _read_rank(text: str) -> int:
    rank = ANY if text == "any" else digits(text)
    if rank is None:
        raise ValueError(f"{quote(text)} is not a rank; write a number, or any")
    return rank


def _whole_number(minimum: int, maximum: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        number = digits(text, maximum)
        if number is None or number < minimum:
            raise ValueError(f"{quote(text)} is not a whole number from {minimum} to {maximum}")
        return number

    return read


def _read_times(text: str) -> float:
    return math.inf if text == "inf" else _whole_number(1, _MAX_NUMBER)(text)


def _read_chance(text: str) -> float:
    try:
        chance = float(text)
    except ValueError:
        chance = math.nan
    if not 0 < chance <= 1:
        raise ValueError(f"{quote(text)} is not a probability above 0 up to 1")
    return chance


def _read_signal(text: str) -> signal.Signals:
    if text not in _SIGNALS:
        raise ValueError(
            f"{quote(text)} is not a signal that ends a process; choose from {', '.join(_SIGNALS)}"
        )
    return _SIGNALS[text]


_MAX_NUMBER = 10**9
_FIELDS = {"for": "seconds", "group-rank": "rank", "signal": "signum", "step-file": "step_file"}
_READERS: dict[str, Callable[[str], Any]] = {
    "after": _MOMENT.parse,
    "attempt": _whole_number(0, _MAX_NUMBER),
    "chance": _read_chance,
    "code": _whole_number(0, 255),
    "every": _SPAN.parse,
    "for": _SPAN.parse,
    "group-rank": _read_rank,
    "node": str,
    "seed": _whole_number(0, 2**63 - 1),
    "signal": _read_signal,
    "step-file": str,
    "times": _read_times,
}
