"""What modules read while they are imported, and would have read differently in a fresh worker."""

from __future__ import annotations

import gc
import importlib.util
import os
import random
import sys
from typing import Any

# Modules of the standard library on the way to the one that wants something.
_BETWEEN = frozenset(
    (
        __name__,
        "_collections_abc",
        "collections.abc",
        "importlib",
        "os",
        "random",
        "secrets",
        "tempfile",
        "uuid",
    )
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

    What a module seeds with a number of its own is the same in fresh interpreters, and stays. What
    a module has drawn from something that the system has seeded cannot be drawn again.
    """

    def __init__(self) -> None:
        self._numbers: set[int] = set()  # that were made of random bytes
        self._takers: list[tuple[int, str]] = []  # such a number, or -1, and who wanted it
        self._randoms: dict[int, tuple[Any, Any]] = {}  # with their states, by id
        self._generators: list[Any] = []  # numpy's
        self._torch = _TorchGenerator()

    def __enter__(self) -> RandomReads:
        source = random.SystemRandom
        self._own = random.Random.seed, source.getrandbits, source.random, source.randbytes
        seed, bits, fraction, some = self._own
        urandom = self._urandom = os.urandom
        random.seed()
        self._note(random._inst)

        def note_seed(instance: Any, a: Any = None, version: int = 2) -> None:
            seed(instance, a, version)
            self._randoms.pop(id(instance), None)
            if a is None and not isinstance(instance, random.SystemRandom):
                self._note(instance)

        def note_bits(instance: Any, k: int) -> int:
            number = bits(instance, k)
            self._numbers.add(number)
            self._takers.append((number, find_caller()))
            return number

        def note_fraction(instance: Any) -> float:
            self._takers.append((-1, find_caller()))
            return fraction(instance)

        def note_some(instance: Any, n: int) -> bytes:
            self._takers.append((-1, find_caller()))
            return some(instance, n)

        def note_bytes(size: int) -> bytes:
            taker = find_caller()
            if taker.partition(":")[0] != _AUTHKEY:
                self._takers.append((-1, taker))
            return urandom(size)

        # What `secrets` gives comes from here: `random` has taken `os.urandom` for itself already.
        changed: Any = random
        changed.Random.seed, changed.SystemRandom.getrandbits = note_seed, note_bits
        changed.SystemRandom.random, changed.SystemRandom.randbytes = note_fraction, note_some
        os.urandom = note_bytes
        self._torch.begin()
        return self

    def __exit__(self, *error: object) -> None:
        self._torch.end()
        changed: Any = random.SystemRandom
        random.Random.seed, changed.getrandbits, changed.random, changed.randbytes = self._own  # type: ignore[method-assign]
        os.urandom = self._urandom

    def problems(self) -> list[str]:
        """What workers would share that fresh ones would not, in words."""
        made: set[int] = set()
        found = []
        numpy: Any = sys.modules.get("numpy.random.bit_generator")
        if self._numbers and numpy is not None:
            for item in gc.get_objects():
                # `isinstance` may run the code of a lazy module that is looked at.
                if not issubclass(type(item), numpy.BitGenerator):
                    continue
                entropy = getattr(_seed_sequence(item), "entropy", None)
                if isinstance(entropy, int) and entropy in self._numbers:
                    made.add(entropy)
                    self._generators.append(item)
                    fresh = type(item)(numpy.SeedSequence(entropy))
                    if repr(fresh.state) != repr(item.state):
                        found.append("random numbers were drawn from numpy")
        takers = {taker for number, taker in self._takers if number not in made}
        found += [f"{taker} takes random bytes for itself" for taker in sorted(takers)]
        if any(instance.getstate() != state for instance, state in self._randoms.values()):
            found.append("random numbers were drawn from Python's random")
        if self._torch.was_used():
            found.append("random numbers were drawn from torch")
        return [f"{what}, which workers would share" for what in dict.fromkeys(found)]

    def seed_anew(self) -> None:
        """Give this process what no other one has."""
        for instance, _ in self._randoms.values():
            instance.seed()
        for generator in self._generators:
            generator.__init__()
        self._torch.seed_anew()
        process: Any = sys.modules.get(_AUTHKEY)
        if process is not None:
            process.current_process().authkey = os.urandom(32)
        uuid: Any = sys.modules.get("uuid")
        if uuid is not None and uuid._node is not None and uuid._node >> 40 & 1:
            uuid._node = None  # it was made up, as this machine shows no address

    def _note(self, instance: Any) -> None:
        self._randoms[id(instance)] = instance, instance.getstate()


class _TorchGenerator:
    """torch's generator of the processor, which the system seeds when torch is imported.

    torch does that in C++, so its state is looked at as soon as the import of torch is over.
    """

    def __init__(self) -> None:
        self._before: tuple[int, bytes] | None = None
        self._is_asking = False

    def begin(self) -> None:
        """Look out for the import of torch."""
        sys.meta_path.insert(0, self)

    def end(self) -> None:
        """Look out no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: object, target: object = None) -> Any:
        """Find torch as the other finders do, and let its loader say when it is there."""
        if name != "torch" or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec: Any = importlib.util.find_spec(name)
        finally:
            self._is_asking = False
        if spec is None or spec.loader is None:
            return None
        loader, execute = spec.loader, spec.loader.exec_module

        def exec_module(module: Any) -> None:
            del loader.exec_module
            self.end()
            execute(module)
            self._before = _torch_state()

        loader.exec_module = exec_module
        return spec

    def was_used(self) -> bool:
        """Whether somebody has drawn from it what the system has seeded."""
        now = _torch_state()
        if self._before is None or now is None or now == self._before:
            return False
        # Another seed of few bits is somebody's own, and the same in each interpreter.
        return now[0] == self._before[0] or now[0] >= 1 << 32

    def seed_anew(self) -> None:
        """Let the system seed it, if the system has."""
        if self._before is not None and _torch_state() == self._before:
            sys.modules["torch"].default_generator.seed()


def _torch_state() -> tuple[int, bytes] | None:
    generator: Any = getattr(sys.modules.get("torch"), "default_generator", None)
    if generator is None:
        return None
    return generator.initial_seed(), bytes(generator.get_state().tolist())


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
