"""Sampling a worker during its imports."""

from __future__ import annotations

import sys
import threading

import pytest
from plaunch.agent import WorkerExit, WorkerInfo, notifications
from plaunch.plugin import PluginContext
from plaunch.process.stopping.stop_sequence import StopStep
from plaunch_hang.stacks.import_watch import (
    ImportWatch,
    RoundImports,
    advise,
    find_module,
    is_enough,
    is_importing,
    may_preload,
    name_module,
    read_stack,
)

from helpers.clock import Clock
from helpers.faults import raising
from helpers.gates import gate  # noqa: F401 - a fixture
from helpers.groups import make_group
from helpers.programs import running_python
from helpers.stacks import readable_stacks  # noqa: F401 - a fixture
from helpers.waiting import wait_until

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
IN_TORCH, IN_NUMPY, IN_SCRIPT = [SCRIPT, *TORCH], [SCRIPT, *NUMPY], [SCRIPT]
IMPORTS = [IN_TORCH] * 5 + [IN_SCRIPT] * 2
WORKER = WorkerInfo(
    local_rank=0, global_rank=0, role_rank=0, world_size=1, role_world_size=1, pid=77
)
GROUP = make_group(workers=(WORKER,))
CONTEXT = PluginContext("job", "role", "host", settings={"start_method": "spawn", "options": {}})
STARTED = notifications.WorkersStarted(GROUP)
FINISHED = notifications.LaunchFinished(GROUP, None)
ENDS = [
    notifications.WorkerExitSeen(GROUP, WorkerExit(WORKER, 0, False)),
    notifications.Stopping(GROUP, StopStep("signalled", 15, (0,), 0.0)),
    notifications.BeforeRendezvous(GROUP),
]


class StackScript:
    """Returns the stacks of a worker one after the other, every half second."""

    def __init__(self, *stacks):
        self.stacks = stacks
        self.clock = Clock()
        self.pids = []
        self._left = []

    def watch(self):
        return ImportWatch(CONTEXT, self, pause=0.0, clock=self.clock)

    def __call__(self, pid):
        self.pids.append(pid)
        if not self._left:
            self._left = [*self.stacks]
        self.clock.now += 0.5
        stack = self._left.pop(0)
        if isinstance(stack, Exception):
            raise stack
        return stack


@pytest.fixture(autouse=True)
def _shown_lines(caplog):
    """Advice is logged, so it is of use."""
    caplog.set_level("INFO", "plaunch")


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "plaunch-imports"]


def wait_for_threads():
    wait_until(lambda: not threads(), threads)


def play(watch, rounds):
    """Play rounds whose workers live until sampling stops."""
    for _ in range(rounds):
        watch(STARTED)
        wait_for_threads()
        watch(ENDS[0])


@pytest.mark.parametrize(
    ("stacks", "rounds", "looks", "is_advised"),
    [
        (IMPORTS, 2, 14, False),
        (IMPORTS, 3, 21, True),
        (IMPORTS, 5, 21, True),  # more are not needed
        ([IN_SCRIPT] * 2, 12, 20, False),  # ten rounds are enough
        # A failed sample only makes the next one count for more.
        (
            [IN_TORCH, OSError("torn"), IN_TORCH, OSError("torn"), IN_TORCH, *IMPORTS[5:]],
            3,
            21,
            True,
        ),
    ],
)
def test_each_restart_is_sampled_until_the_advice_is_known(
    stacks, rounds, looks, is_advised, caplog
):
    seen = StackScript(*stacks)
    watch = seen.watch()
    play(watch, rounds)
    watch(FINISHED)
    assert ("imported torch again" in caplog.text) == is_advised
    assert seen.pids == [77] * looks


@pytest.mark.parametrize("end", ENDS, ids=lambda end: type(end).__name__)
def test_the_end_of_a_round_does_not_wait_for_a_sample(end, gate, caplog):  # noqa: F811
    entered = threading.Event()

    def look(pid):
        entered.set()
        gate.wait()
        return IN_TORCH

    watch = ImportWatch(CONTEXT, look, pause=0.0)
    watch(STARTED)
    entered.wait()
    watch(end)  # which would wait for ever
    assert threads()
    gate.set()
    wait_for_threads()
    watch(FINISHED)
    assert caplog.messages == []


def test_a_round_may_be_too_short_for_a_stack(caplog):
    """Then the next one is sampled too."""
    caplog.set_level("DEBUG", "plaunch")
    watch = None

    def look(pid):
        pids.append(pid)
        watch(ENDS[0])
        raise OSError("no interpreter yet")

    pids = []
    watch = ImportWatch(CONTEXT, look, pause=0.0)
    play(watch, 2)
    assert pids == [77, 77]
    assert caplog.text.count("cannot be sampled: no interpreter yet") == 2


@pytest.mark.parametrize(
    ("error", "looks"),
    [
        (FileNotFoundError("py-spy is not installed"), 1),
        (OSError("the system does not allow it"), 40),
    ],
    ids=lambda value: type(value).__name__,
)
def test_sampling_stops_where_it_is_impossible(error, looks, caplog):
    caplog.set_level("DEBUG", "plaunch")
    seen = StackScript(error)
    watch = seen.watch()
    play(watch, 3)
    watch(FINISHED)
    assert len(seen.pids) == looks
    (record,) = caplog.records
    assert record.levelname == "DEBUG"
    assert str(error) in record.message


def test_an_endless_import_is_sampled_for_a_bounded_time():
    seen = StackScript(IN_TORCH)
    watch = seen.watch()
    play(watch, 1)
    assert len(seen.pids) == 240  # looks in two minutes


def test_a_thread_cannot_be_started(monkeypatch, caplog):
    caplog.set_level("DEBUG", "plaunch")
    monkeypatch.setattr(threading.Thread, "start", raising(RuntimeError("no more threads")))
    seen = StackScript(IN_TORCH)
    watch = seen.watch()
    watch(STARTED)
    watch(FINISHED)
    assert "no more threads" in caplog.text
    assert seen.pids == []


def test_a_worker_without_a_process_is_not_sampled():
    seen = StackScript(IN_TORCH)
    seen.watch()(notifications.WorkersStarted(make_group()))
    assert not threads()
    assert seen.pids == []


@pytest.mark.parametrize(
    ("settings", "is_useful"),
    [
        ({"start_method": "spawn", "options": {}}, True),
        ({"start_method": "spawn", "options": {"preload": "torch"}}, False),
        ({"start_method": "fork", "options": {}}, False),
    ],
)
def test_preloading_is_possible_and_not_used_yet(settings, is_useful):
    assert may_preload(settings) == is_useful


def test_advice_that_is_not_shown_needs_no_samples(caplog):
    caplog.set_level("WARNING", "plaunch")
    seen = StackScript(IN_TORCH)
    seen.watch()(STARTED)
    assert not threads()
    assert seen.pids == []


# --- a real process -------------------------------------------------------------------------------


@pytest.mark.usefixtures("readable_stacks")
def test_a_real_process():
    with running_python("-c", "def wait(): input()\nprint(flush=True)\nwait()") as process:
        process.stdout.readline()
        wait_until(
            lambda: [name for name, _ in read_stack(process.pid)] == ["<module>", "wait"],
            lambda: read_stack(process.pid),
        )
        with pytest.raises(OSError, match="it has ended"):
            read_stack(2**22 + 1)  # above every process


def test_without_py_spy_there_is_no_stack(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="py-spy is not installed"):
        read_stack(1)


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
