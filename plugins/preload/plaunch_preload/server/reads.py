"""What modules read while they are imported, and would have read differently in a fresh worker."""

from __future__ import annotations

import gc
import os
import random
import sys
from typing import Any

# Modules of the standard library on the way to the one that wants something.
_BETWEEN = frozenset(
    (__name__, "os", "_collections_abc", "random", "secrets", "tempfile", "uuid", "importlib")
)
_AUTHKEY = "multiprocessing.process"  # takes random bytes that a worker can make anew


class VariableReads:
    """Notes which variables are read while modules are imported, and by whom.

    Attributes:
        names: who has read it first, by the name of the variable.
        readers_of_all: who has read all variables at once.
    """

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.readers_of_all: set[str] = set()

    def __enter__(self) -> VariableReads:
        kind: Any = type(os.environ)
        self._own = kind.__getitem__, kind.__iter__
        read_one, read_all = self._own

        def note_one(environ: Any, name: Any) -> Any:
            if isinstance(name, (str, bytes)) and (text := os.fsdecode(name)) not in self.names:
                self.names[text] = find_caller()
            return read_one(environ, name)

        def note_all(environ: Any) -> Any:
            self.readers_of_all.add(find_caller())
            return read_all(environ)

        kind.__getitem__, kind.__iter__ = note_one, note_all
        return self

    def __exit__(self, *error: object) -> None:
        kind: Any = type(os.environ)
        kind.__getitem__, kind.__iter__ = self._own


class RandomReads:
    """Notes what is seeded by the system while modules are imported, to seed it anew in a worker.

    What a module seeds with a number of its own is the same in fresh interpreters, and stays.
    """

    def __init__(self) -> None:
        self._numbers: set[int] = set()  # that were made of random bytes
        self._takers: list[tuple[int, str]] = []  # such a number, or -1, and who wanted it
        self._randoms: list[Any] = []
        self._generators: list[Any] = []  # numpy's

    def __enter__(self) -> RandomReads:
        self._own = (random.Random.seed, random.SystemRandom.getrandbits, os.urandom)
        seed, bits, urandom = self._own

        def note_seed(instance: Any, a: Any = None, version: int = 2) -> None:
            if a is None and not isinstance(instance, random.SystemRandom):
                self._randoms.append(instance)
            seed(instance, a, version)

        def note_bits(instance: Any, k: int) -> int:
            number = bits(instance, k)
            self._numbers.add(number)
            self._takers.append((number, find_caller()))
            return number

        def note_bytes(size: int) -> bytes:
            taker = find_caller()
            if taker.partition(":")[0] != _AUTHKEY:
                self._takers.append((-1, taker))
            return urandom(size)

        changed: Any = random
        changed.Random.seed, changed.SystemRandom.getrandbits = note_seed, note_bits
        os.urandom = note_bytes
        return self

    def __exit__(self, *error: object) -> None:
        changed: Any = random
        changed.Random.seed, changed.SystemRandom.getrandbits, os.urandom = self._own

    def find_takers(self) -> list[str]:
        """Who took random bytes for something that a worker cannot make anew."""
        made: set[int] = set()
        numpy: Any = sys.modules.get("numpy.random.bit_generator")
        if self._numbers and numpy is not None:
            for item in gc.get_objects():
                # `isinstance` may run the code of a lazy module that is looked at.
                if issubclass(type(item), numpy.BitGenerator):
                    entropy = getattr(_seed_sequence(item), "entropy", None)
                    if isinstance(entropy, int) and entropy in self._numbers:
                        made.add(entropy)
                        self._generators.append(item)
        return sorted({taker for number, taker in self._takers if number not in made})

    def seed_anew(self) -> None:
        """Give this process what no other one has."""
        random.seed()
        for instance in self._randoms:
            instance.seed()
        for generator in self._generators:
            generator.__init__()
        process: Any = sys.modules.get(_AUTHKEY)
        if process is not None:
            process.current_process().authkey = os.urandom(32)
        uuid: Any = sys.modules.get("uuid")
        if uuid is not None and uuid._node is not None and uuid._node >> 40 & 1:
            uuid._node = None  # it was made up, as this machine shows no address


def _seed_sequence(generator: Any) -> Any:
    found = getattr(generator, "seed_seq", None)
    return getattr(generator, "_seed_seq", None) if found is None else found


def find_caller() -> str:
    """The module that is reading, and its line, as in `torch.jit._state:29`."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") in _BETWEEN:
        frame = frame.f_back
    if frame is None:
        return "?"
    return f"{frame.f_globals.get('__name__')}:{frame.f_lineno}"
