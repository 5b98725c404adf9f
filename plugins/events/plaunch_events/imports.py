"""Slow imports of workers after restarts, found from samples of their stacks.

A stack is a list of frames, outermost first; each frame is a function name and a file.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Frame = tuple[str, str]

HEAVY = 1.0  # seconds; an import that takes longer is slow
ROUNDS = 3  # rounds in which a module must be slow before there is advice
_CALM = 2  # samples in a row without an import, after which the imports are done
_FOLDERS = ("/site-packages/", "/dist-packages/")


def is_importing(stack: Iterable[Frame]) -> bool:
    """Whether the stack is inside an import."""
    return any(map(_is_import, stack))


def find_module(stack: Iterable[Frame]) -> str:
    """Return the full name of the outermost installed module being imported; empty if none is.

    The user's own modules and those of Python are skipped: if `mymodel` imports torch, the result
    is `torch`. Submodules are named in full, such as `sklearn.svm`, because importing `sklearn`
    would not import them.
    """
    is_within = False
    for frame in stack:
        is_within = is_within or _is_import(frame)
        if is_within and frame[0] == "<module>" and (name := name_module(frame[1])):
            return name
    return ""


def name_module(file: str) -> str:
    """The name of the installed module in `file`; empty if the file is not in site-packages."""
    for folder in _FOLDERS:
        _, found, path = file.rpartition(folder)
        stem, _, kind = path.rpartition(".")
        if found and kind in ("py", "pyc"):
            parts = stem.removesuffix("/__init__").split("/")
            if all(map(str.isidentifier, parts)):
                return ".".join(parts)
    return ""


class RoundImports:
    """The imports of one worker in one round, from samples of its stack.

    Seconds are measured between samples, so they are never more than the import took. Only imports
    that a later sample shows to be done are counted, not one that fails or never ends.
    """

    def __init__(self) -> None:
        self.seconds: Mapping[str, float] = {}  # by module; replaced, never changed
        self._module = ""
        self._since = self._until = 0.0
        self._calm = 0

    @property
    def is_over(self) -> bool:
        """Whether the worker has finished its imports."""
        return self._calm >= _CALM

    @property
    def heavy(self) -> dict[str, float]:
        """The seconds of slow imports, by module."""
        return {module: seconds for module, seconds in self.seconds.items() if seconds > HEAVY}

    def note(self, stack: Sequence[Frame], began: float, ended: float) -> None:
        """Add the next sample.

        Args:
            stack: the stack; empty while the interpreter starts.
            began: when the sample began, in seconds on any clock.
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
    """The seconds of each slow module, one number for each round in which it was slow."""
    found: dict[str, list[float]] = {}
    for imports in rounds:
        for module, seconds in imports.heavy.items():
            found.setdefault(module, []).append(seconds)
    return found


def is_enough(rounds: Iterable[RoundImports]) -> bool:
    """Whether some module was slow in enough rounds for advice."""
    return any(len(seconds) >= ROUNDS for seconds in count_rounds(rounds).values())


def advise(rounds: Iterable[RoundImports], local_rank: int) -> str:
    """Say in one line what `--preload` would have saved; empty if no module was slow often enough.

    `local_rank` is the worker that was sampled.
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
