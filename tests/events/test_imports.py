"""Slow imports of workers after restarts, from samples of stacks."""

from __future__ import annotations

import pytest
from plaunch_events.imports import (
    RoundImports,
    advise,
    find_module,
    is_enough,
    is_importing,
    name_module,
)

SITE = "/venv/lib/python3.11/site-packages"
SCRIPT = ("<module>", "/home/me/train.py")
IMPORT = [
    ("_find_and_load", "<frozen importlib._bootstrap>"),
    ("_find_and_load_unlocked", "<frozen importlib._bootstrap>"),
    ("_load_unlocked", "<frozen importlib._bootstrap>"),
    ("_LoaderBasics.exec_module", "<frozen importlib._bootstrap_external>"),
    ("_call_with_frames_removed", "<frozen importlib._bootstrap>"),
]
TORCH = [*IMPORT, ("<module>", f"{SITE}/torch/__init__.py")]
NUMPY = [*IMPORT, ("<module>", f"{SITE}/numpy/__init__.py")]
MINE = [*IMPORT, ("<module>", "/home/me/mymodel.py")]
STANDARD = [*IMPORT, ("<module>", "/usr/lib/python3.11/concurrent/futures/__init__.py")]
TRAINING = [SCRIPT, ("main", "/home/me/train.py"), ("backward", f"{SITE}/torch/_tensor.py")]

STACKS = {
    "nothing yet": ([], False, ""),
    "the script alone": ([SCRIPT], False, ""),
    "training": (TRAINING, False, ""),
    "torch": ([SCRIPT, *TORCH], True, "torch"),
    "in a function of it": (
        [SCRIPT, *TORCH, ("_init", f"{SITE}/torch/__init__.py")],
        True,
        "torch",
    ),
    "what it imports is not the outermost": ([SCRIPT, *TORCH, *NUMPY], True, "torch"),
    "behind the user's own module": ([SCRIPT, *MINE, *STANDARD, *TORCH, *NUMPY], True, "torch"),
    "the user's own module": ([SCRIPT, *MINE], True, ""),
    "a module that only begins": ([SCRIPT, *IMPORT[:2]], True, ""),
    "a program that is installed": ([("<module>", f"{SITE}/acme/train.py")], False, ""),
    "what that imports": ([("<module>", f"{SITE}/acme/train.py"), *TORCH], True, "torch"),
}


@pytest.mark.parametrize(("stack", "is_import", "module"), STACKS.values(), ids=STACKS)
def test_the_outermost_installed_module_is_found(stack, is_import, module):
    assert (is_importing(stack), find_module(stack)) == (is_import, module)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        (f"{SITE}/torch/__init__.py", "torch"),
        (f"{SITE}/six.py", "six"),
        (f"{SITE}/sklearn/svm/__init__.py", "sklearn.svm"),
        (f"{SITE}/google/protobuf/message.pyc", "google.protobuf.message"),
        ("/usr/lib/python3/dist-packages/yaml/__init__.py", "yaml"),
        (f"{SITE}/acme.egg/acme/__init__.py", ""),
        (f"{SITE}/__init__.py", "__init__"),
        ("/usr/lib/python3.11/json/__init__.py", ""),
        ("/home/me/site-packages.py", ""),
        ("<string>", ""),
    ],
)
def test_a_module_is_named_by_its_file(file, name):
    assert name_module(file) == name


def sample_all(*stacks, every=0.5, takes=0.125):
    """The imports of a round with these samples."""
    imports = RoundImports()
    for number, stack in enumerate(stacks):
        imports.note(stack, number * every, number * every + takes)
    return imports


IN_TORCH, IN_NUMPY, IN_SCRIPT = [SCRIPT, *TORCH], [SCRIPT, *NUMPY], [SCRIPT]

ROUNDS = {
    "one look is no time": ([IN_TORCH, IN_SCRIPT], {}, False),
    # From the end of the first sample to the beginning of the last one.
    "from look to look": ([IN_TORCH] * 5 + [IN_SCRIPT] * 2, {"torch": 1.875}, True),
    "one after the other": (
        [IN_TORCH] * 3 + [IN_NUMPY] * 2 + [IN_SCRIPT] * 2,
        {"torch": 0.875, "numpy": 0.375},
        True,
    ),
    "an import that may never end": ([IN_TORCH] * 9, {}, False),
    "one sample without an import": ([IN_TORCH] * 2 + [IN_SCRIPT], {"torch": 0.375}, False),
    "samples without an import that are not consecutive": (
        [IN_SCRIPT, [SCRIPT, *MINE]] * 3,
        {},
        False,
    ),
    "an interpreter that begins": ([[]] * 5, {}, False),
    "another try": (
        [IN_TORCH] * 3 + [IN_NUMPY] + [IN_TORCH] * 2 + [IN_SCRIPT],
        {"torch": 0.875},
        False,
    ),
}


@pytest.mark.parametrize(("stacks", "seconds", "is_over"), ROUNDS.values(), ids=ROUNDS)
def test_seconds_are_measured_between_samples(stacks, seconds, is_over):
    imports = sample_all(*stacks)
    assert imports.seconds == seconds
    assert imports.is_over == is_over


HEAVY = sample_all(*[IN_TORCH] * 5, IN_SCRIPT)  # 1.875 s
BOTH = sample_all(*[IN_TORCH] * 4, *[IN_NUMPY] * 6, IN_SCRIPT)  # 1.375 s and 2.375 s
LIGHT = sample_all(*[IN_TORCH] * 3, IN_SCRIPT)  # 0.875 s
NO_IMPORT = sample_all(IN_SCRIPT, IN_SCRIPT)


@pytest.mark.parametrize(
    "rounds", [[], [HEAVY] * 2, [LIGHT] * 9, [HEAVY, LIGHT, HEAVY, NO_IMPORT], [NO_IMPORT] * 3]
)
def test_no_advice_for_fewer_than_three_slow_imports(rounds):
    assert not is_enough(rounds)
    assert advise(rounds, 0) == ""


@pytest.mark.parametrize(
    ("rounds", "words"),
    [
        ([HEAVY] * 3, "imported torch again, for at least 5.6 s in all; --preload=torch would"),
        ([HEAVY] * 4, "imported torch again, for at least 5.6 s in all"),  # three are spoken of
        ([NO_IMPORT, HEAVY, LIGHT, BOTH, HEAVY], "imported torch again, for at least 5.1 s"),
        ([BOTH] * 3, "numpy and torch again, for at least 11.2 s in all; --preload=numpy,torch "),
    ],
)
def test_advice_for_three_slow_imports(rounds, words):
    assert is_enough(rounds)
    line = advise(rounds, 2)
    assert line.startswith("in each of 3 restarts, local rank 2 imported ")
    assert words in line
