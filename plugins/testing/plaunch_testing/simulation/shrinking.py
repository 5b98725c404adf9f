"""Makes a script that fails smaller, so that a person can read it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from plaunch_testing.simulation.script import InjectedFault, Script

__all__ = ["shorten"]


def shorten(script: Script, find: Callable[[Script], Sequence[str]], attempts: int = 300) -> Script:
    """Return a smaller script for which the same check finds something, or the same script.

    Args:
        script: one for which something is found.
        find: runs a script, and returns its findings; they begin with the name of the check.
        attempts: how many scripts are run at most.
    """
    checks = _checks_of(find(script))
    if not checks:
        return script
    simpler = _simpler(script)
    while attempts > 0 and (candidate := next(simpler, None)) is not None:
        attempts -= 1
        if checks & _checks_of(find(candidate)):
            script, simpler = candidate, _simpler(candidate)
    return script


def _checks_of(findings: Sequence[str]) -> set[str]:
    return {finding.partition(":")[0] for finding in findings}


def _simpler(script: Script) -> Iterator[Script]:
    """Yield scripts that are a little simpler, those first that leave out most."""
    for index in range(len(script.faults)):
        yield replace(script, faults=script.faults[:index] + script.faults[index + 1 :])
    for changes in (
        {"offsets": (0.0,) * script.nodes},
        {"latency": 0.001},
        {"workers": 1},
        {"starts": (0.0,) * script.nodes},
        {"stop_times": (0.2,) * script.nodes},
        {"exclude_after": None},
        {"node_restarts": None},
        {"peers_fail": True},
        {"max_restarts": 3},
        {"duration": 10.0},
        {"duration": round(script.duration, 1)},
    ):
        candidate = replace(script, **changes)
        if candidate != script:
            yield candidate
    for index, fault in enumerate(script.faults):
        for simpler in _simpler_faults(fault):
            if simpler != fault:
                faults = (*script.faults[:index], simpler, *script.faults[index + 1 :])
                yield replace(script, faults=tuple(sorted(faults, key=lambda each: each.at)))


def _simpler_faults(fault: InjectedFault) -> Iterator[InjectedFault]:
    yield replace(fault, returns=False)
    for digits in (0, 1, 2):
        yield replace(fault, at=round(fault.at, digits))
        yield replace(fault, lasts=round(fault.lasts, digits))
