"""Detects random numbers drawn during imports, and generators to seed again."""

from __future__ import annotations

import functools
import gc
import os
import random
import sys
from typing import TYPE_CHECKING, Any

from .known_lines import find_caller
from .replacements import AfterImport, Replacements

if TYPE_CHECKING:
    from .known_lines import HarmlessLines


class RandomReads:
    """Records what the system seeds during imports, and seeds it again in a worker.

    A generator that a module seeds with a constant is the same in fresh interpreters, and is kept.
    Numbers drawn from a generator that the system has seeded cannot be drawn again, except by
    harmless lines.
    """

    def __init__(self, harmless: HarmlessLines) -> None:
        self._harmless = harmless
        self._replacements = Replacements()
        self._numbers: set[int] = set()  # numbers made of random bytes
        self._seeds: set[object] = set()  # of numpy's replaceable global generator
        self._takers: list[tuple[int, str]] = []  # the number, or -1, and the line that drew it
        self._randoms: dict[int, _Generator] = {}  # Python's generators, by id
        self._generators: list[Any] = []  # numpy's generators
        self._numpy_drawers: set[str] = set()
        self._torch = _TorchGenerator()
        self._imports = AfterImport(
            {
                "_ssl": self._watch_openssl,
                "numpy.random.mtrand": self._watch_numpy,
                "torch": self._torch.begin,
                "uuid": self._watch_uuid,
            }
        )
        self._is_watching = False

    def __enter__(self) -> RandomReads:
        self._is_watching = True
        random.seed()
        self._record(random._inst)
        self._watch_generators()
        self._watch_system()
        self._imports.begin()
        return self

    def __exit__(self, *error: object) -> None:
        self._imports.end()
        self._replacements.restore()
        self._is_watching = False  # some replacements may remain

    def _watch_generators(self) -> None:
        """Record the lines that seed, and draw from, Python's generators."""
        replace = self._replacements.replace
        kind = random.Random
        seed, fraction, bits = kind.seed, kind.random, kind.getrandbits

        def note_seed(instance: Any, a: Any = None, version: int = 2) -> None:
            seed(instance, a, version)
            self._randoms.pop(id(instance), None)
            if a is None and not isinstance(instance, random.SystemRandom):
                self._record(instance)

        def note_fraction(instance: Any) -> float:
            self._record_draw(instance)
            return fraction(instance)

        def note_bits(instance: Any, k: int) -> int:
            self._record_draw(instance)
            return bits(instance, k)

        replace(kind, "seed", note_seed)
        replace(kind, "random", note_fraction)
        replace(kind, "getrandbits", note_bits)
        # These functions of the module are methods of its generator, bound earlier.
        for name in ("seed", "random", "getrandbits"):
            replace(random, name, getattr(random._inst, name))

    def _watch_system(self) -> None:
        """Record the lines that take random bytes from the system."""
        replace = self._replacements.replace
        source = random.SystemRandom
        bits, fraction, some = source.getrandbits, source.random, source.randbytes

        def note_bits(instance: Any, k: int) -> int:
            number = bits(instance, k)
            self._numbers.add(number)
            self._record_taker(number)
            return number

        def note_fraction(instance: Any) -> float:
            self._record_taker()
            return fraction(instance)

        def note_some(instance: Any, n: int) -> bytes:
            self._record_taker()
            return some(instance, n)

        # `secrets` uses these: `random` has imported `os.urandom` already.
        replace(source, "getrandbits", note_bits)
        replace(source, "random", note_fraction)
        replace(source, "randbytes", note_some)
        for name in ("urandom", "getrandom"):
            self._watch_taker(os, name)

    def _watch_openssl(self, module: Any) -> None:
        self._watch_taker(module, "RAND_bytes")

    def _watch_uuid(self, module: Any) -> None:
        # The system's library creates time-based identifiers.
        self._watch_taker(module, "_generate_time_safe")

    def _watch_taker(self, module: Any, name: str) -> None:
        """Record the lines that call a function with unique results."""
        take = getattr(module, name, None)
        if take is None:
            return

        def note(*args: Any, **options: Any) -> Any:
            self._record_taker()
            return take(*args, **options)

        self._replacements.replace(module, name, note)

    def _watch_numpy(self, module: Any) -> None:
        """Record the lines that draw from numpy's global generator, which is new."""
        self._seeds.add(_entropy(module._rand._bit_generator))

        def noting(function: Any) -> Any:
            @functools.wraps(function)
            def note(*args: Any, **options: Any) -> Any:
                if self._is_watching:
                    self._numpy_drawers.add(find_caller())
                return function(*args, **options)

            return note

        for name, value in list(vars(module).items()):
            if callable(value) and getattr(value, "__self__", None) is module._rand:
                self._replacements.replace(module, name, noting(value))

    def note_import(self, name: str) -> None:
        """Check what a preloaded module has drawn."""
        self._torch.note_import(name)

    def problems(self) -> list[str]:
        """Return what forked workers would share and fresh ones would not."""
        made = set(self._seeds)
        found = []
        numpy: Any = sys.modules.get("numpy.random.bit_generator")
        if self._numbers and numpy is not None:
            for item in gc.get_objects():
                # `isinstance` may run the code of a lazy module.
                if not issubclass(type(item), numpy.BitGenerator):
                    continue
                entropy = _entropy(item)
                if entropy in self._numbers:
                    made.add(entropy)
                    self._generators.append(item)
                    fresh = type(item)(numpy.SeedSequence(entropy))
                    if repr(fresh.state) != repr(item.state):
                        found += self._describe_numpy(item)
        takers = {taker for number, taker in self._takers if number not in made}
        found += [f"{taker} takes random bytes for itself" for taker in sorted(takers)]
        for generator in self._randoms.values():
            found += generator.problems()
        if self._torch.user:
            found.append(f"{self._torch.user} draws from torch's generator")
        return [f"{what}, which workers would share" for what in dict.fromkeys(found)]

    def seed_anew(self) -> None:
        """Seed the generators of this process again."""
        for generator in self._randoms.values():
            generator.instance.seed()
        for bit_generator in self._generators:
            bit_generator.__init__()
        self._torch.seed_anew()

    def _describe_numpy(self, bit_generator: Any) -> list[str]:
        """Return the lines that have drawn from a generator of numpy, or have created it."""
        if bit_generator is sys.modules["numpy.random.mtrand"]._rand._bit_generator:
            drawers = sorted(self._numpy_drawers) or ["native code"]
            return [f"{drawer} draws from numpy's global generator" for drawer in drawers]
        entropy = _entropy(bit_generator)
        creators = sorted({taker for number, taker in self._takers if number == entropy})
        return [f"{creator} creates a generator of numpy's that is used" for creator in creators]

    def _record(self, instance: Any) -> None:
        self._randoms[id(instance)] = _Generator(instance)

    def _record_draw(self, instance: Any) -> None:
        generator = self._randoms.get(id(instance)) if self._is_watching else None
        if generator is not None:
            generator.drawers.add("" if self._harmless.is_running() else find_caller())

    def _record_taker(self, number: int = -1) -> None:
        if self._is_watching and not self._harmless.is_running():
            self._takers.append((number, find_caller()))


class _Generator:
    """A generator of Python's that the system has seeded.

    Attributes:
        drawers: the lines that have drawn from it; "" for harmless ones.
    """

    def __init__(self, instance: random.Random) -> None:
        self.instance = instance
        self.drawers: set[str] = set()
        self._state = instance.getstate()

    def problems(self) -> list[str]:
        """Return the draws that may have been kept."""
        if self.instance.getstate() == self._state or self.drawers == {""}:
            return []
        # Draws of C code, or of modules imported earlier, are not detected.
        drawers = sorted(self.drawers - {""}) or ["native code"]
        names: Any = getattr(sys.modules.get("tempfile"), "_name_sequence", None)
        if names is not None and names.rng is self.instance:
            return [f"{drawer} makes a temporary file or folder" for drawer in drawers]
        return [f"{drawer} draws from Python's random" for drawer in drawers]


class _TorchGenerator:
    """torch's CPU generator, which the system seeds when torch is imported.

    torch seeds and draws in C++, so its state is read right after the import of torch, and after
    each preloaded module.

    Attributes:
        user: the first preloaded module that has drawn from it; empty if none has.
    """

    def __init__(self) -> None:
        self.user = ""
        self._before: tuple[int, bytes] | None = None

    def begin(self, module: object) -> None:
        """Read the state after the import of torch."""
        self._before = _torch_state()

    def note_import(self, name: str) -> None:
        """Check whether a preloaded module has drawn."""
        now = _torch_state()
        if self.user or self._before is None or now is None or now == self._before:
            return
        # Another, short seed is a module's constant, and the same in each interpreter.
        if now[0] == self._before[0] or now[0] >= 1 << 32:
            self.user = name

    def seed_anew(self) -> None:
        """Let the system seed it again, if its state is still the system's."""
        if self._before is not None and _torch_state() == self._before:
            sys.modules["torch"].default_generator.seed()


def _torch_state() -> tuple[int, bytes] | None:
    generator: Any = getattr(sys.modules.get("torch"), "default_generator", None)
    if generator is None:
        return None
    return generator.initial_seed(), bytes(generator.get_state().tolist())


def _entropy(bit_generator: Any) -> object:
    """Return the seed of a generator of numpy, or None."""
    sequence = getattr(bit_generator, "seed_seq", None)
    if sequence is None:
        sequence = getattr(bit_generator, "_seed_seq", None)
    entropy = getattr(sequence, "entropy", None)
    return entropy if isinstance(entropy, int) else None
