"""What workers import for long after restarts, from looks at their stacks; no process is needed.

A stack is a list of frames, the outermost first, each with its function and its file.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Frame = tuple[str, str]

HEAVY = 1.0  # seconds; an import that takes longer is worth a word
ROUNDS = 3  # in so many rounds
_CALM = 2  # looks in a row without an import, after which the imports are over
_FOLDERS = ("/site-packages/", "/dist-packages/")


def is_importing(stack: Iterable[Frame]) -> bool:
    """Whether an import goes on."""
    return any(map(_is_import, stack))


def find_module(stack: Iterable[Frame]) -> str:
    """The installed module whose import goes on, by its whole name; empty if there is none.

    It is the outermost one. The user's own modules and those of Python are passed over: if
    `mymodel` imports torch, it is torch. The name is that of the very module, `sklearn.svm` say,
    because to import `sklearn` would not import that.
    """
    is_within = False
    for frame in stack:
        is_within = is_within or _is_import(frame)
        if is_within and frame[0] == "<module>" and (name := name_module(frame[1])):
            return name
    return ""


def name_module(file: str) -> str:
    """The name of the installed module in `file`; empty if it is somewhere else."""
    for folder in _FOLDERS:
        _, found, path = file.rpartition(folder)
        stem, _, kind = path.rpartition(".")
        if found and kind in ("py", "pyc"):
            parts = stem.removesuffix("/__init__").split("/")
            if all(map(str.isidentifier, parts)):
                return ".".join(parts)
    return ""


class RoundImports:
    """What one worker imports in one round, from looks at its stack.

    The seconds are those between looks, and so never more than the import took. An import counts
    when it is seen to be over: one that fails with its worker, or never ends, does not.
    """

    def __init__(self) -> None:
        self.seconds: Mapping[str, float] = {}  # by module; another object whenever it changes
        self._module = ""
        self._since = self._until = 0.0
        self._calm = 0

    @property
    def is_over(self) -> bool:
        """Whether the worker has left its imports, and runs code of its own."""
        return self._calm >= _CALM

    @property
    def heavy(self) -> dict[str, float]:
        """The seconds of the modules that took long, by module."""
        return {module: seconds for module, seconds in self.seconds.items() if seconds > HEAVY}

    def note(self, stack: Sequence[Frame], began: float, ended: float) -> None:
        """Take the next look.

        Args:
            stack: is empty while the interpreter begins.
            began: when the look began, in seconds on any clock.
            ended: when it ended.
        """
        if not stack:
            return
        self._calm = 0 if is_importing(stack) else self._calm + 1
        module = find_module(stack)
        if module == self._module:
            self._until = began
            return
        took = self._until - self._since
        if self._module and took > self.seconds.get(self._module, 0.0):
            self.seconds = {**self.seconds, self._module: took}
        self._module = module
        self._since = self._until = ended


def count_rounds(rounds: Iterable[RoundImports]) -> dict[str, list[float]]:
    """The seconds of each module that took long, one number for each round in which it did."""
    found: dict[str, list[float]] = {}
    for imports in rounds:
        for module, seconds in imports.heavy.items():
            found.setdefault(module, []).append(seconds)
    return found


def is_enough(rounds: Iterable[RoundImports]) -> bool:
    """Whether there is something to advise."""
    return any(len(seconds) >= ROUNDS for seconds in count_rounds(rounds).values())


def advise(rounds: Iterable[RoundImports], local_rank: int) -> str:
    """One line on what `--preload` would have saved in these rounds; empty if that is not known.

    `local_rank` is who was looked at.
    """
    found = {
        module: sum(seconds[:ROUNDS])
        for module, seconds in count_rounds(rounds).items()
        if len(seconds) >= ROUNDS
    }
    if not found:
        return ""
    modules = sorted(found, key=lambda module: -found[module])
    names = " and ".join([", ".join(modules[:-1]), modules[-1]] if modules[1:] else modules)
    least = math.floor(10 * sum(found.values())) / 10
    option = f"--preload={','.join(modules)}"
    return (
        f"in each of {ROUNDS} restarts, local rank {local_rank} imported {names} again, for at "
        f"least {least:g} s in all; {option} would have saved that, if it is possible here: "
        f"plaunch --doctor {option} tells"
    )


def _is_import(frame: Frame) -> bool:
    name, file = frame
    return name == "_find_and_load" and file.startswith("<frozen importlib")
