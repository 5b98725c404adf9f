"""What is fuzzed: everything that reads what other programs and people have written.

Each module is a target. It has a function `check`, which feeds plaunch with some bytes and raises
what must not be. It may have `MAX_LENGTH` and `WORDS`, bytes from which the fuzzer makes inputs.
`tests/fuzzing/corpus` has a folder of inputs for each. `tools/fuzz` looks for more of them.
"""

from __future__ import annotations

import importlib
import os
import re
import resource
import signal
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

FOLDER = Path(__file__).parent
CORPUS = FOLDER.parents[1] / "fuzzing" / "corpus"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("[a-z]*.py") if path.stem != "reading"))
MAX_LENGTH = 2048  # bytes of an input, where a target says nothing else
MAX_SECONDS = 3.0  # of CPU time for one input
MAX_GROWTH = 256 << 20  # bytes


class Finding(AssertionError):
    """A result that no input may cause."""


def load(name):
    """Return a target: its `check`, the limit of its inputs, words for them, and what it is."""
    module = importlib.import_module(f"helpers.fuzz_targets.{name}")
    return SimpleNamespace(
        name=name,
        check=module.check,
        max_length=getattr(module, "MAX_LENGTH", MAX_LENGTH),
        words=getattr(module, "WORDS", ()),
        about=module.__doc__.partition("\n")[0],
    )


def run_input(target, data, max_seconds=MAX_SECONDS):
    """Check one input.

    Raises:
        Finding: it has taken too much time or memory, or a property does not hold.
        Exception: plaunch has raised it; no input may cause that, either.
    """
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.thread_time()
    target.check(data)
    took = time.thread_time() - began
    if took > max_seconds:
        raise Finding(f"it has taken {took:.1f} s of CPU time")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    if grown << 10 > MAX_GROWTH:
        raise Finding(f"it has taken {grown >> 10} MiB more memory")


@contextmanager
def interrupted(seconds):
    """Interrupt code that uses the processor for longer."""

    def stop(signum, frame):
        raise Finding(f"it takes more than {seconds:g} s of CPU time")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def corpus_of(name):
    """Return the inputs of a target in the repository, sorted by name."""
    return sorted(path for path in (CORPUS / name).glob("*") if path.is_file())


def kind_of(error):
    """Return what findings of one kind share: the exception, and where plaunch raised it."""
    import traceback

    places = [
        f"{os.path.basename(frame.filename)}:{frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
        if "plaunch" in frame.filename and "helpers" not in frame.filename
    ]
    text = "" if places and not isinstance(error, Finding) else re.split(r"['\"\d(]", str(error))[0]
    return f"{type(error).__name__} in {places[-1] if places else 'the check'} {text}".rstrip()
