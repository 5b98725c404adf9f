"""Workers of a real fork server, compared with fresh ones."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from plaunch_preload.preloader import Preloader, read_timeout

from helpers.fork_servers import Fleet, fresh_output
from helpers.processes import is_gone
from helpers.programs import running_python
from helpers.waiting import wait_for_files, wait_until

# Everything that a program can observe about its start, as one line of JSON.
SHOW = """
import atexit, json, os, resource, signal, stat, sys, warnings
def stream(which):
    s = getattr(sys, which)
    return None if s is None else [
        s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through, s.seekable(),
        s.isatty(), s.newlines, type(s.buffer).__name__]
seen = {
    "argv": sys.argv, "orig_argv": sys.orig_argv, "name": __name__,
    "file": globals().get("__file__"),
    "spec": __spec__ and [__spec__.name, __spec__.origin], "path": sys.path,
    "main": sorted(vars(sys.modules["__main__"])),
    "flags": repr(sys.flags), "cwd": os.getcwd(), "umask": os.umask(0), "environ": dict(os.environ),
    "streams": [stream(which) for which in ("stdin", "stdout", "stderr")],
    "session": os.getsid(0) == os.getpid(), "group": os.getpgid(0) == os.getpid(),
    "ignored": sorted(s for s in signal.valid_signals() if signal.getsignal(s) == signal.SIG_IGN),
    "caught": sorted(s for s in signal.valid_signals() if callable(signal.getsignal(s))),
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "limits": [resource.getrlimit(n) for n in range(8)],
    "affinity": sorted(os.sched_getaffinity(0)),
    "nice": os.nice(0), "parent": os.getppid(),
    "fds": {f: stat.S_IFMT(os.fstat(int(f)).st_mode) for f in os.listdir("/proc/self/fd")
            # ctypes, which has forked the worker, may hold the file of its library.
            if os.path.exists("/proc/self/fd/" + f)
            and "/libffi" not in os.readlink("/proc/self/fd/" + f)},
    "warnings": repr(warnings.filters), "meta_path": len(sys.meta_path),
    "of_plaunch": sorted(m for m in sys.modules if "plaunch" in m), "hooks": len(sys.path_hooks),
    "excepthook": sys.excepthook is sys.__excepthook__,
    "threads": len(os.listdir("/proc/self/task")),
    "prefix": sys.prefix, "warnoptions": sys.warnoptions, "xoptions": sys._xoptions,
}
os.write(1, json.dumps(seen).encode() + b"\\n")
"""


def soon(condition):
    """Wait until the condition holds."""
    return wait_until(condition, "what the test waits for")


@pytest.mark.parametrize(
    "words",
    ["show.py a b", "-u show.py", "-m show x", "-m pkg", "-W error -X dev -O show.py", "link.py"],
)
def test_a_forked_worker_equals_a_fresh_one(fleet, folder, words, monkeypatch):
    (folder / "show.py").write_text(SHOW)
    (folder / "pkg").mkdir()
    (folder / "pkg" / "__init__.py").touch()
    (folder / "pkg" / "__main__.py").write_text(SHOW)
    (folder / "link.py").symlink_to(folder / "show.py")
    monkeypatch.setenv("PYTHONPATH", str(folder / "more"))
    monkeypatch.setenv("HELLO", "wörld")
    # A module that the program does not import would only be visible in `sys.modules`.
    one = fleet("decimal", *words.split())
    forked = json.loads(one.output())
    env = {**os.environ, "RANK": "0"}
    fresh = json.loads(fresh_output(one.command, env))
    for seen in (forked, fresh):
        seen["environ"].pop("PLAUNCH_JOBS", None)
    assert forked.pop("parent") == fresh.pop("parent") == os.getpid()
    assert {key: forked[key] for key in fresh if forked[key] != fresh[key]} == {}


# The simple values that modules and their objects hold, by name, as one line of JSON.
STATE = """
import json, os, sys, threading
WORDS
SIMPLE = (int, float, str, bytes, bool, type(None))
def shown(value, depth):
    if isinstance(value, SIMPLE):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return [shown(item, depth + 1) for item in value] if depth < 3 and len(value) < 30 else ""
    if isinstance(value, dict) and len(value) < 60:
        return names(value, depth)
    if isinstance(value, type):
        return value.__qualname__
    if isinstance(value, type(sys)) or type(value) is threading.Lock:
        return ""
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return type(value).__qualname__
    return names(attributes, depth)
def names(values, depth):
    if depth > 2:
        return ""
    return {str(k): shown(v, depth + 1) for k, v in list(values.items()) if isinstance(k, str)}
state = {"of the process": {"pid": repr(os.getpid())}}
for name, module in sorted(sys.modules.items()):
    try:
        state[name] = names(object.__getattribute__(module, "__dict__"), 0)
    except AttributeError:
        pass
os.write(1, json.dumps(state).encode() + b"\\n")
"""
# Modules that describe other modules; a forked worker also has those of the fork server.
ABOUT_MODULES = ("__future__", "__main__", "__mp_main__", "inspect", "linecache", "sys")
# Since Python 3.13, a fork empties this dictionary, which notes that.
EMPTIED = ".concurrent.futures.thread._threads_queues._dirty_len"


def flat(values, path=""):
    """Return the values of nested dictionaries by their path."""
    if not isinstance(values, dict):
        return {path: values}
    return {
        place: value
        for name, inner in values.items()
        for place, value in flat(inner, f"{path}.{name}").items()
    }


@pytest.mark.parametrize(
    "modules",
    [
        "threading,logging,multiprocessing.util,multiprocessing.popen_fork,asyncio,tempfile,random,"
        "uuid,ssl,socket,secrets,concurrent.futures.thread,signal,time,faulthandler,gc,hmac,"
        "importlib.metadata,queue,weakref,selectors,locale,platform,getpass,contextvars",
        pytest.param("torch,torch._dynamo,numpy", marks=pytest.mark.exhaustive),
    ],
    ids=["standard library", "torch"],
)
def test_modules_of_a_forked_worker_have_the_state_of_fresh_ones(fleet, folder, modules):
    """Each difference here is something that a module has cached of its process."""
    if "torch" in modules:
        pytest.importorskip("torch")
    (folder / "show.py").write_text(STATE.replace("WORDS", f"import {modules}"))
    one = fleet(modules, "show.py", timeout=300.0)
    forked = json.loads(one.output())
    env = {**os.environ, "RANK": "0"}
    fresh, again = (json.loads(fresh_output(one.command, env)) for _ in range(2))
    # A forked worker has more modules, and so more attributes of packages.
    compared = (forked.keys() & fresh.keys()) - set(ABOUT_MODULES)
    forked, fresh, again = (
        flat({name: seen[name] for name in compared}) for seen in (forked, fresh, again)
    )
    pids = [seen.pop(".of the process.pid") for seen in (forked, fresh, again)]
    differing = {}
    for name in (forked.keys() & fresh.keys() & again.keys()) - {EMPTIED}:
        values = [seen[name] for seen in (forked, fresh, again)]
        if values[1:] == pids[1:]:
            values = [value == pid for value, pid in zip(values, pids, strict=True)]
        if values[1] == values[2] != values[0]:
            differing[name] = values
    assert differing == {}
    assert fresh[".threading._main_thread._native_id"] == pids[1]


def test_a_folder_that_is_created_later_is_found(fleet, folder, monkeypatch):
    """The interpreter remembers folders in PYTHONPATH that do not exist."""
    monkeypatch.setenv("PYTHONPATH", str(folder / "later"))
    (folder / "train.py").write_text("import unpacked; print(unpacked.X)")
    one = fleet("decimal", "train.py")
    one.preloader.wait()
    (folder / "later").mkdir()
    (folder / "later" / "unpacked.py").write_text("X = 5")
    assert one.output() == "5\n"


@pytest.mark.heavy
def test_modules_of_a_training_are_imported_with_torch(fleet, folder, caplog):
    pytest.importorskip("torch")
    (folder / "train.py").write_text(
        "import sys; print('torch._dynamo' in sys.modules, 'torch' in sys.modules)"
    )
    one = fleet("torch", "train.py", timeout=300.0)
    one.preloader.wait()
    if "instantiator" in caplog.text:
        pytest.skip("torch._dynamo of this torch makes a folder, which workers would share")
    assert one.output() == "True True\n"


def test_a_worker_gets_descriptors_and_settings_of_the_launcher(fleet, folder):
    (folder / "show.py").write_text(SHOW)
    one = fleet("decimal", "show.py")
    read, write = os.pipe()
    before = os.umask(0o27)
    try:
        seen = json.loads(one.output(pass_fds=[write, read]))
    finally:
        os.umask(before)
        os.close(read), os.close(write)
    assert seen["umask"] == 0o27
    assert {str(read), str(write)} <= seen["fds"].keys()


def test_a_program_of_the_launcher_has_the_modules(fleet, folder):
    (folder / "slow.py").write_text("imports = 1\n")
    (folder / "train.py").write_text("import time; time.sleep(60)\n")
    (folder / "program.py").write_text(
        "import os, sys\n"
        "assert __name__ == '__main__'\n"
        "print('slow' in sys.modules, sys.argv[1:], os.environ['HELPER'], sys.stdin.read())\n"
        "print('to stderr', file=sys.stderr)\n"
        "sys.exit(7)\n"
    )
    one = fleet("slow", "train.py")
    one.preloader.wait()
    command = [sys.executable, str(folder / "program.py"), "a b"]
    (given, stdin), (stdout, out), (stderr, err) = os.pipe(), os.pipe(), os.pipe()
    os.write(stdin, b"input")
    os.close(stdin)
    helper = one.preloader.start_helper(
        command, env={**os.environ, "HELPER": "1"}, stdin=given, stdout=out, stderr=err
    )
    for fd in (given, out, err):
        os.close(fd)
    assert helper is not None
    with open(stdout) as output, open(stderr) as errors:
        assert output.read() == "True ['a b'] 1 input\n"
        assert errors.read() == "to stderr\n"
    assert helper.wait(20) == 7


def test_an_exception_of_such_a_program_is_printed(fleet, folder):
    (folder / "train.py").touch()
    (folder / "program.py").write_text("raise ValueError('bad')\n")
    one = fleet("decimal", "train.py")
    one.preloader.wait()
    stderr, err = os.pipe()
    helper = one.preloader.start_helper(
        [sys.executable, str(folder / "program.py")],
        env=dict(os.environ), stdin=0, stdout=1, stderr=err,
    )  # fmt: skip
    os.close(err)
    with open(stderr) as errors:
        assert "ValueError: bad" in errors.read()
    assert helper.wait(20) == 1


def test_another_interpreter_is_executed(fleet, folder):
    (folder / "train.py").touch()
    one = fleet("decimal", "train.py")
    one.preloader.wait()
    command = ["/usr/bin/other-python", "program.py"]
    assert one.preloader.start_helper(command, env={}, stdin=0, stdout=1, stderr=2) is None


SEEDS = """
import mine, os, random, secrets, sys, tempfile, uuid, torch, numpy
from multiprocessing import current_process
print(torch.initial_seed(), torch.rand(1).item(), numpy.random.rand(), random.random(),
      numpy.random.default_rng().random(), uuid.uuid4(), secrets.token_hex(), mine.R.random(),
      mine.N.random(), bytes(current_process().authkey).hex(),
      next(tempfile._get_candidate_names()))
print(mine.FIXED.random(), torch.Generator().initial_seed())
"""


@pytest.mark.heavy
def test_workers_share_no_random_state(fleet, folder):
    (folder / "mine.py").write_text(
        "import random, numpy, torch\n"
        "R, FIXED, N = random.Random(), random.Random(5), numpy.random.default_rng()\n"
    )
    (folder / "seeds.py").write_text(SEEDS)
    one = fleet("mine,uuid,multiprocessing,tempfile", "seeds.py")
    first, second = (one.output().split("\n") for _ in range(2))
    alike = [a for a, b in zip(first[0].split(), second[0].split(), strict=True) if a == b]
    assert alike == []
    assert first[1] == second[1]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise ValueError('no')", "bad cannot be imported: ValueError: no"),
        ("import sys; sys.exit(3)", "bad cannot be imported: SystemExit: 3"),
        ("import nosuch", "No module named 'nosuch'"),
        ("import os; print('bye', flush=True); os._exit(3)", r"has ended \(exit code 3\).*\n.*bye"),
        (
            "import threading as t, time; t.Thread(None, time.sleep, 'mine', (60,)).start()",
            r"1 thread\(s\) run: mine$",
        ),
        ("import subprocess; P = subprocess.Popen(['sleep', '60'])", "a process was started"),
        ("F = open(__file__)", "open: .*bad.py"),
        ("import socket; S = socket.socket()", "open: socket:"),
        ("import mmap; M = mmap.mmap(-1, 4096)", "shared memory: "),
        (
            "import os; os.environ.get('RANK')",
            "RANK differs between workers, and bad:1 reads it",
        ),
        ("import os; os.environ.get('MASTER_PORT')", "MASTER_PORT is set in each round, and bad:1"),
        ("import os; E = dict(os.environ)", "bad:1 reads all variables"),
        ("import os; B = os.urandom(8)", "bad:1 takes random bytes for itself"),
        ("import secrets; T = secrets.token_hex()", "bad:1 takes random bytes for itself"),
        ("import secrets; N = secrets.randbelow(9)", "bad:1 takes random bytes for itself"),
        ("import random; X = random.SystemRandom().random()", "bad:1 takes random bytes"),
        ("import random; X = random.random()", "bad:1 draws from Python's random"),
        ("from random import getrandbits; X = getrandbits(8)", "bad:1 draws from Python's random"),
        ("import random\nR = random.Random()\nR.choice('ab')", "bad:3 draws from Python's random"),
        ("import numpy\nX = numpy.random.rand()", "bad:2 draws from numpy's global generator"),
        (
            "import numpy\nG = numpy.random.default_rng()\nG.random()",
            "bad:2 creates a generator of numpy's that is used",
        ),
        ("import tempfile; T = tempfile.mkdtemp()", "bad:1 makes a temporary file or folder"),
        ("import time; time.sleep(60)", "did not import its modules within 1 s"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "was killed while it imported"),
    ],
)
def test_modules_that_prevent_a_fork(fleet, folder, caplog, source, said):
    (folder / "bad.py").write_text(source)
    (folder / "train.py").touch()
    one = fleet("bad", "train.py", timeout=1.0 if "sleep(60)" in source else 30.0)
    envs = {rank: {**os.environ, "RANK": str(rank), "MASTER_PORT": "1"} for rank in range(2)}
    assert one.run(envs=envs) == [None, None]
    (record,) = caplog.records[:1]
    assert record.getMessage().startswith("--preload=bad: ")
    assert re.search(said, record.getMessage()), record.getMessage()


@pytest.mark.parametrize(
    "source",
    [
        "import tempfile; F = tempfile.gettempdir()",
        "import multiprocessing.process",
        "import random; random.seed(5); X = random.random()",
        "import numpy; numpy.random.seed(5); X = numpy.random.rand()",
        "import fsspec.config",
        "import rich.style",
    ],
)
def test_modules_that_do_not_prevent_a_fork(fleet, folder, caplog, source):
    (folder / "fine.py").write_text(source)
    (folder / "train.py").write_text("import sys; print('fine' in sys.modules)")
    assert fleet("fine", "train.py").output() == "True\n", caplog.text


# As in tqdm, whose other variables do not matter.
FILTERING = """
import os
def envwrap(prefix):
    return dict(
        (k, v) for k, v in os.environ.items() if k.startswith(prefix))
X = envwrap(PREFIX)
"""


@pytest.mark.parametrize(
    ("prefix", "differing", "said"),
    [
        ("TQDM_", "RANK", ""),
        ("TQDM_", "TQDM_DISABLE", "TQDM_DISABLE differs between workers, and tqdm.utils:"),
        ("RA", "RANK", "reads all variables"),
    ],
)
def test_a_known_reader_of_variables_with_a_prefix(fleet, folder, caplog, prefix, differing, said):
    (folder / "tqdm").mkdir()
    (folder / "tqdm" / "__init__.py").touch()
    (folder / "tqdm" / "utils.py").write_text(FILTERING.replace("PREFIX", repr(prefix)))
    (folder / "train.py").touch()
    one = fleet("tqdm.utils", "train.py")
    envs = {rank: {**os.environ, differing: str(rank)} for rank in range(2)}
    workers = one.run(envs=envs)
    assert [worker is None for worker in workers] == [bool(said)] * 2
    assert [worker.wait(30) for worker in workers if worker] == [0, 0][: 0 if said else 2]
    assert said in caplog.text


COPIES = """
import random, os
from os import urandom
from random import getrandbits, random as draw, seed
class Held:
    draw = draw
"""


def test_replaced_functions_are_restored(fleet, folder):
    (folder / "copies.py").write_text(COPIES)
    (folder / "train.py").write_text(
        "import copies, os, random\n"
        "print(copies.urandom, copies.draw, copies.getrandbits, os.urandom, random.random)\n"
        "print(random.Random.random, copies.seed.__func__, random.Random.seed is copies.seed)\n"
    )
    one = fleet("copies", "train.py")
    fresh = fresh_output(one.command, dict(os.environ))
    without_addresses = [re.sub(" at 0x[0-9a-f]+", "", text) for text in (one.output(), fresh)]
    assert without_addresses[0] == without_addresses[1]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["bash", "train.sh"], "'bash', and not Python"),
        ([sys.executable, "-I", "train.py"], "-I prevents a fork server"),
        (["/nowhere/python3", "train.py"], "No such file"),
    ],
)
def test_commands_that_cannot_be_forked(folder, caplog, command, said):
    preloader = Preloader(["json"])
    preloader.begin(command, dict(os.environ))
    try:
        preloader.wait()
        preloader.prepare({0: dict(os.environ)})
        assert preloader.start(0, command, env=os.environ, stdout=None, stderr=None) is None
    finally:
        preloader.close()
    (record,) = caplog.records
    assert said in record.getMessage()


def test_a_script_is_not_preloaded(fleet, folder, caplog):
    (folder / "train.py").write_text("raise SystemExit('imported')")
    assert fleet("train", "train.py").run() == [None]
    assert "train is the script itself" in caplog.text


def test_endless_imports_time_out(fleet, folder, monkeypatch):
    monkeypatch.setenv("PLAUNCH_PRELOAD_TIMEOUT", "inf")
    (folder / "train.py").write_text("print('trained')")
    assert fleet("decimal", "train.py", timeout=read_timeout()).output() == "trained\n"


def test_output_of_modules_is_reported_once(fleet, folder, caplog):
    (folder / "loud.py").write_text("import sys; print('you', file=sys.stderr); print('hello')")
    (folder / "train.py").touch()
    one = fleet("loud", "train.py")
    assert one.output() == ""
    assert "the modules wrote 'you hello' while they were imported" in caplog.text


def test_a_variable_of_all_workers_is_set_for_the_next_round(fleet, folder, caplog):
    (folder / "reader.py").write_text("import os; X = os.environ.get('SITE', '')")
    (folder / "train.py").write_text("import reader; print(reader.X)")
    one = fleet("reader", "train.py")
    envs = {0: {**os.environ, "SITE": "here"}}
    assert one.run(envs=envs) == [None]
    assert "SITE, which reader:1 reads when loaded, is set for all workers" in caplog.text
    soon(lambda: one.preloader._supervisor.find() is not None)
    assert one.output(envs=envs) == "here\n"


def test_a_changed_module_is_imported_again(fleet, folder, caplog):
    (folder / "model.py").write_text("X = 1")
    (folder / "train.py").write_text("import model; print(model.X)")
    one = fleet("model", "train.py")
    assert one.output() == "1\n"
    (folder / "model.py").write_text("X = 222")
    (folder / "train.py").write_text("import model; print('new', model.X)")
    assert one.output() == "new 222\n"
    assert "files of modules have changed (model); they are imported again" in caplog.text


def test_a_killed_fork_server_is_replaced(fleet, folder, caplog):
    (folder / "slow.py").write_text("import time; time.sleep(0.5)")
    (folder / "train.py").write_text("print('ran')")
    one = fleet("slow", "train.py")
    assert one.output() == "ran\n"
    os.kill(one.preloader._supervisor.find().pid, signal.SIGKILL)
    soon(lambda: one.preloader._supervisor.find() is None)
    assert one.run() == [None]  # meanwhile
    soon(lambda: one.preloader._supervisor.find() is not None)
    assert one.output() == "ran\n"
    assert "has ended (killed by SIGKILL (signal 9)); another one" in caplog.text


@pytest.mark.parametrize("is_asked", [False, True], ids=["before the round", "in the round"])
def test_a_stopped_fork_server_blocks_no_worker(fleet, folder, caplog, monkeypatch, is_asked):
    (folder / "train.py").write_text("print('ran')")
    one = fleet("decimal", "train.py")
    assert one.output() == "ran\n"
    server = one.preloader._supervisor.find()

    def stop():
        patience.setattr("plaunch_preload.fork_server.ANSWER_TIMEOUT", 0.5)
        os.kill(server.pid, signal.SIGSTOP)

    with monkeypatch.context() as patience:
        if is_asked:
            with monkeypatch.context() as files:
                files.setattr(server, "find_changed", lambda: stop() or [])
                assert one.run() == [None]
            assert "this round's workers are started afresh" in caplog.text
        else:
            stop()
        assert one.run() == [None]
    assert "did not check its files within 0.5 s; another one is started, and" in caplog.text
    soon(lambda: one.preloader._supervisor.find() is not None)
    assert one.output() == "ran\n"


def test_many_workers_with_large_environments(fleet, folder):
    (folder / "train.py").write_text(
        "import os; print(os.environ['RANK'], sum(map(len, os.environ.values())), flush=True)"
    )
    large = {f"LARGE{number}": "x" * 100_000 for number in range(10)}
    one = fleet("decimal", "train.py")
    read, write = os.pipe()
    with open(read) as reader:
        workers = one.run(
            envs={rank: {**os.environ, **large, "RANK": str(rank)} for rank in range(64)},
            stdout=write,
        )
        os.close(write)
        lines = [list(map(int, line.split())) for line in reader]
    assert [worker.wait(30) for worker in workers] == [0] * 64
    assert sorted(rank for rank, _ in lines) == list(range(64))
    assert all(size > 1_000_000 for _, size in lines)


def test_a_server_that_is_killed_before_it_starts_is_replaced(fleet, folder, caplog):
    """An interpreter that does not reach the fork server's code is not tried again."""
    (folder / "once").touch()
    (folder / "train.py").write_text("print('ran')")
    python = folder / "python3"
    kill = "rm once 2>/dev/null && kill -KILL $$"
    python.write_text(f'#!/bin/sh\n{kill}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    one = fleet("decimal", "train.py", python=str(python))
    soon(lambda: one.preloader._supervisor.find() is not None)
    assert one.output() == "ran\n"
    assert "was killed while it started (killed by SIGKILL (signal 9)); another one" in caplog.text


def test_a_server_that_is_killed_again_and_again_is_given_up(fleet, folder, caplog):
    (folder / "train.py").touch()
    one = fleet("decimal", "train.py")
    supervisor = one.preloader._supervisor
    for _ in range(4):
        soon(lambda: supervisor.find() is not None)
        server = supervisor.find()
        os.kill(server.pid, signal.SIGKILL)
        soon(lambda server=server: supervisor.find() is not server)
    soon(lambda: "as 3 others did" in caplog.text)
    assert one.run() == [None]


def test_the_server_ends_with_the_launcher(folder):
    """Also if it is stopped, and with processes that modules have started."""
    (folder / "hang.py").write_text(
        "import os, signal, subprocess\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "print(os.getpid(), child.pid, file=open('pids.new', 'w'), flush=True)\n"
        "os.rename('pids.new', 'pids')\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n"
    )
    program = (
        "import os, sys, time; from plaunch_preload.preloader import Preloader\n"
        "p = Preloader(['hang']); p.begin([sys.executable, 'train.py'], dict(os.environ))\n"
        "time.sleep(600)\n"
    )
    with running_python("-c", program) as launcher:
        wait_for_files(folder / "pids")
        pids = [int(pid) for pid in (folder / "pids").read_text().split()]
        wait_until(lambda: is_stopped(pids[0]), "it is stopped")
        launcher.kill()
        launcher.wait()
        soon(lambda: all(map(is_gone, pids)))


def test_forked_processes_that_are_not_workers_end_with_the_server(fleet, folder):
    (folder / "train.py").touch()
    one = fleet("decimal", "train.py")
    one.preloader.wait()
    others = children()
    server = one.preloader._supervisor.find().pid
    one.preloader.prepare({rank: dict(os.environ) for rank in range(2)})
    forked = children() - others
    assert len(forked) == 2
    for pid in forked:
        os.kill(pid, signal.SIGSTOP)
    os.kill(server, signal.SIGKILL)
    soon(lambda: all(map(is_gone, forked)))


def children():
    """Return the children of this process."""
    return {
        int(pid)
        for path in Path("/proc/self/task").glob("*/children")
        for pid in path.read_text().split()
    }


def is_stopped(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize(
    "source",
    [
        "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
        # The system rejects a call temporarily.
        """
import errno, os
fork = os.fork
def refused():
    if os.path.exists("refuse"):
        os.unlink("refuse")
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    return fork()
os.fork = refused
""",
    ],
    ids=["SIGCHLD", "EAGAIN"],
)
def test_it_continues_to_fork(fleet, folder, caplog, source):
    (folder / "odd.py").write_text(source)
    (folder / "train.py").write_text("print('ran')")
    one = fleet("odd", "train.py")
    assert one.output() == "ran\n"
    if "refuse" in source:
        (folder / "refuse").touch()
        assert one.run() == [None]
        assert "cannot fork: [Errno 11] Resource temporarily unavailable" in caplog.text
    assert one.output() == "ran\n"
    assert not is_gone(one.preloader._supervisor.find().pid)


def test_closing_leaves_no_process_or_descriptor(folder):
    (folder / "train.py").write_text("import time; time.sleep(60)")
    before = sorted(os.listdir("/proc/self/fd"))
    one = Fleet(["decimal"], [sys.executable, "train.py"])
    (worker,) = one.run()
    server = one.preloader._supervisor.find()
    one.preloader.close()
    assert is_gone(server.pid)
    assert worker.poll() is None  # workers continue
    worker.discard()
    assert worker.returncode == -signal.SIGKILL
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_other_processes_see_a_worker_by_its_script_and_rank(fleet, folder):
    (folder / "train.py").write_text(
        "for f in ('comm', 'cmdline', 'environ'): print(ascii(open(f'/proc/self/{f}').read()))"
    )
    one = fleet("decimal", "train.py", "--lr", "1")
    envs = {3: {**os.environ, "PLAUNCH_JOBS": "abc.3"}}
    comm, cmdline, environ = one.output(envs=envs).splitlines()
    assert comm == r"'train.py:3\n'"
    assert r"train.py\x00--lr\x001\x00" in cmdline
    assert "PLAUNCH_JOBS=abc.3:" in environ
    assert "plaunch_preload" not in environ
    with open(f"/proc/{one.preloader._supervisor.find().pid}/cmdline") as file:
        assert file.read().startswith("plaunch-preload\0decimal\0")
