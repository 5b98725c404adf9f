"""What is read from the tracebacks of workers."""

from __future__ import annotations

import json
import os
import signal
import sysconfig
from dataclasses import replace

import pytest
from plaunch.process import ProcessFailure, shorten
from plaunch.process.tracebacks import (
    LINKS,
    SourceFiles,
    abort_in_output,
    are_asides,
    chain_in_output,
    chain_in_reply,
)

from helpers.programs import run_python
from helpers.tracebacks import HEADER, TORCH, WHILE, failure_with, frames


@pytest.mark.parametrize(
    "path",
    [
        "/home/me/train.py",
        "train.py",
        "/opt/lib/train.py",
        "/home/me/torch/train.py",
        "/home/me/models/torch/nn/my.py",
        "/home/me/proj/torch/utils/data.py",
        "/home/me/python3.11/train.py",
        "/opt/app/lib/python3.11/mytrain/train.py",
        "/opt/app/lib/python3.11/code-of-mine/train.py",
        "<string>",
        "/tmp/ipykernel_7/1.py",
    ],
)
def test_files_of_the_user(path) -> None:
    assert SourceFiles([path, TORCH]).is_own(path)


@pytest.mark.parametrize(
    "path",
    [
        TORCH,
        json.__file__,
        os.path.join(sysconfig.get_path("purelib"), "lightning", "loop.py"),
        "/usr/lib/python3/dist-packages/numpy/core.py",
        "/home/me/.pyenv/versions/3.13.1/lib/python3.13t/threading.py",
        "/opt/conda/lib/python3.12/site-packages/a.py",
        "/usr/lib/python312.zip/json/decoder.py",
        "<frozen importlib._bootstrap>",
        "/home/me/pytorch/torch/distributed/distributed_c10d.py",
        "/home/me/pytorch/torch/_dynamo/eval_frame.py",
        "<eval_with_key>.12",
    ],
)
def test_files_of_python_of_packages_and_of_torch(path) -> None:
    assert not SourceFiles([path]).is_own(path)


def test_torch_used_from_its_sources_is_known_by_another_file() -> None:
    linear = "/src/torch/nn/linear.py"
    assert SourceFiles([linear, "/src/torch/nn/modules/module.py"]).is_torch(linear)
    assert not SourceFiles([linear, "/other/torch/nn/modules/module.py"]).is_torch(linear)


# --- the place ------------------------------------------------------------------------------------


def test_the_users_line_beneath_frames_of_torch() -> None:
    lines = [HEADER, *frames("/home/me/train.py", 80, 39), *frames(TORCH, 1, 2, 3)]
    failure = failure_with([*lines, "ValueError: bad shape"])
    assert failure.raised == ("ValueError", "ValueError: bad shape", "train.py:39")
    assert (failure.place, failure.brief) == ("train.py:39", "ValueError: bad shape")
    assert failure.headline == "ValueError: bad shape (train.py:39)"


@pytest.mark.parametrize(
    ("paths", "place"),
    [
        ([TORCH], "module.py:1"),
        (["/v/site-packages/mine/a.py", TORCH], "a.py:1"),
        (["/v/site-packages/mine/a.py", "/home/me/train.py", TORCH], "train.py:1"),
    ],
)
def test_without_an_own_frame_it_is_the_last_that_is_not_torchs(paths, place) -> None:
    lines = [line for path in paths for line in frames(path, 1)]
    assert failure_with([HEADER, *lines, "E: no"]).place == place


def test_of_a_chain_it_is_that_of_the_last_exception() -> None:
    lines = [HEADER, *frames("/home/me/a.py", 1), "KeyError: 1", "", "During handling ...:", ""]
    assert failure_with([*lines, HEADER, *frames(TORCH, 2), "E: no"]).place == "module.py:2"


def test_a_crash_that_faulthandler_has_seen(tmp_path) -> None:
    script = tmp_path / "train.py"
    code = "import os, signal\ndef step():\n    os.kill(os.getpid(), signal.SIGSEGV)\nstep()\n"
    script.write_text(code)
    done = run_python("-X", "faulthandler", script)
    failure = failure_with(done.stderr.splitlines(), done.returncode)
    assert failure.exitcode == -signal.SIGSEGV
    assert failure.headline == "killed by SIGSEGV (signal 11) (train.py:3)"


def test_an_abort_while_the_interpreter_exits_follows_its_exception() -> None:
    late = "terminate called without an active exception"
    lines = [HEADER, *frames("/home/me/a.py", 12), "OSError: no space", late]
    failure = failure_with(lines, -signal.SIGABRT)
    assert failure.headline == "OSError: no space (a.py:12)"
    alone = failure_with([late], -signal.SIGABRT)
    assert alone.headline == f"killed by SIGABRT (signal 6): {late}"


def test_an_exit_without_an_exception_has_no_place() -> None:
    lines = [HEADER, *frames("/home/me/a.py", 1), "KeyError: 1"]
    assert failure_with(lines, exitcode=3).headline == "exit code 3"
    assert failure_with(["it is over"]).headline == "exit code 1"


def test_a_long_text_is_cut_before_the_place() -> None:
    failure = failure_with([HEADER, *frames("/home/me/a.py", 1), f"E: {'x' * 500}"])
    assert failure.headline.endswith("x... (503 characters) (a.py:1)")
    assert len(failure.brief) == 300


def test_what_another_node_has_read_stays() -> None:
    failure = replace(failure_with(["nothing"]), known_place="far.py:1")
    assert failure.headline == "exit code 1 (far.py:1)"


# --- tracebacks of other processes, and of threads ------------------------------------------------

LOADER = "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
FETCH = "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py"
CAUGHT = "ValueError: Caught ValueError in DataLoader worker process 1."


def loader_failed(*original):
    return [
        *(HEADER, *frames("/home/me/train.py", 20), *frames(LOADER, *range(4)), CAUGHT),
        *(f"Original {HEADER}", *original, *frames(FETCH, 1, 2)),
    ]


@pytest.mark.parametrize("most", [20, 99])
def test_of_a_loader_process_its_exception_and_its_line_are_named(most) -> None:
    lines = loader_failed(*frames(FETCH, *range(5)), *frames("/home/me/data.py", 12))
    kept = shorten([*lines, "ValueError: bad shard 7"], most)
    failure = failure_with(kept)
    assert failure.headline == "ValueError: bad shard 7 (data.py:12)"
    assert CAUGHT in kept
    assert any("train.py" in line for line in kept)


def test_of_a_loader_process_without_the_users_code_its_readers_line_is_named() -> None:
    lines = [*loader_failed(), "RuntimeError: stack expects tensors of equal size"]
    assert failure_with(shorten(lines, 20)).place == "train.py:20"


def test_an_error_file_of_a_loader_process_has_the_same_headline(child_file) -> None:
    lines = [*loader_failed(*frames("/home/me/data.py", 12)), "ValueError: bad shard 7"]
    text = "\n".join(lines[lines.index(CAUGHT) :])
    message = {"message": text, "extraInfo": {"py_callstack": "\n".join(lines)}}
    failure = ProcessFailure(0, 7, 1, child_file({"message": message}))
    assert failure.headline == "ValueError: bad shard 7 (data.py:12)"
    assert failure.raised.exception == "ValueError"


@pytest.mark.slow
def test_an_exception_in_a_loader_of_torch(tmp_path) -> None:
    pytest.importorskip("torch.utils.data")
    (tmp_path / "data.py").write_text(
        "class Shards:\n"
        "    def __len__(self): return 64\n"
        "    def __getitem__(self, index):\n"
        "        raise ValueError(f'bad shard {index}')\n"
    )
    (tmp_path / "train.py").write_text(
        "import data, torch\n"
        "if __name__ == '__main__':  # the loader's process imports it, from Python 3.14 on\n"
        "    for batch in torch.utils.data.DataLoader(data.Shards(), num_workers=1): pass\n"
    )
    # The console has the whole traceback, and the headline of what is kept of it.
    argv = ("-m", "plaunch", "--nproc-per-node=1", "train.py")
    done = run_python(*argv, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"})
    headline = next(line for line in done.stderr.splitlines() if " failed after " in line)
    assert headline.endswith(": ValueError: bad shard 0 (data.py:4)"), done.stderr


ASIDES = [
    "Exception in thread Thread-1 (read):",
    "Exception ignored in: <function Reader.__del__ at 0x7fa0d3fa5d00>",
    "Exception ignored in thread started by: <function read at 0x7fa0d40d84a0>",
    "Exception ignored in atexit callback: <function close at 0x7f5cd9bd84a0>",
    "Error in atexit._run_exitfuncs:",
]


@pytest.mark.parametrize("aside", ASIDES)
def test_what_does_not_end_the_process_is_not_the_cause(aside) -> None:
    main = [HEADER, *frames("/home/me/train.py", 39), "ValueError: bad shape"]
    thread = [aside, HEADER, *frames("/home/me/read.py", 7), "KeyError: 't'"]
    chained = [*thread, "", WHILE, "", HEADER, *frames("/home/me/read.py", 9), "OSError: no"]
    for other in (thread, chained):
        for lines in ([*main, *other], [*other, *main]):
            assert failure_with(lines).headline == "ValueError: bad shape (train.py:39)"
        assert failure_with(other).headline == "exit code 1"


def test_python_writes_those_like_this(tmp_path) -> None:
    (tmp_path / "train.py").write_text(
        "import threading\n"
        "def read(): raise KeyError('t')\n"
        "class Reader:\n"
        "    def __del__(self): raise KeyError('d')\n"
        "reader = Reader()\n"
        "thread = threading.Thread(target=read)\n"
        "thread.start(); thread.join()\n"
        "raise ValueError('bad shape')\n"
    )
    done = run_python(tmp_path / "train.py")
    assert done.stderr.count("\nKeyError: ") == 2
    failure = failure_with(done.stderr.splitlines())
    assert failure.headline == "ValueError: bad shape (train.py:8)"


def test_lines_of_logs_are_no_part_of_the_message() -> None:
    lines = [HEADER, *frames("/home/me/a.py", 1), "ValueError: bad", "  shape", "[W1124 x] closed"]
    assert failure_with(lines).raised.text == "ValueError: bad\n  shape"


THROWN = "terminate called after throwing an instance of 'std::runtime_error'"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([THROWN, "  what():  bad shape"], "std::runtime_error: bad shape"),
        (["loss 1", THROWN, "  what():  bad", ""], "std::runtime_error: bad"),
        ([THROWN, "  what():  [enforce fail at /a.cc:4] 8 vs 4"], "std::runtime_error: 8 vs 4"),
        ([THROWN, "  what():  CUDA error", "For debugging", "frame #0: f (a.so)", ""],
         "std::runtime_error: CUDA error"),
        ([THROWN, "  what():  bad", "", "Fatal Python error: Aborted", "", "Thread 0x1:"],
         "std::runtime_error: bad"),
        (["[rank1]: " + THROWN, "[rank1]:   what():  bad"], "std::runtime_error: bad"),
        (["terminate called after throwing an instance of 'int'"], "int"),
        (["done", "terminate called without an active exception"],
         "terminate called without an active exception"),
        # The messages of other processes, and what a script has printed.
        ([THROWN, "  what():  bad", "step 2"], ""),
        (["terminate called without an active exception", "step 2"], ""),
        ([THROWN, "something else"], ""),
        (["log: " + THROWN, "  what():  bad"], ""),
        (["  what():  bad"], ""),
        ([], ""),
    ],
)  # fmt: skip
def test_the_reason_of_an_abort_is_the_end_of_the_output(lines, said):
    assert abort_in_output(lines) == said


GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "/home/me/train.py", line 7, in main
  |     raise ExceptionGroup("many", errors)
  | ExceptionGroup: many (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/home/me/data.py", line 3, in load
    | ValueError: a
    +---------------- 2 ----------------
    | TypeError: b
    +------------------------------------
"""


def test_an_exception_group_is_the_exception_that_ended_the_worker() -> None:
    failure = failure_with(GROUP.splitlines())
    assert failure.raised.exception == "ExceptionGroup"
    assert failure.headline == "ExceptionGroup: many (2 sub-exceptions) (train.py:7)"


def colored(lines):
    return [f"\x1b[1;35m{line}\x1b[0m" for line in lines]


def grouped(lines):
    return [f"  + Exception Group {lines[0]}", *(f"  | {line}" for line in lines[1:])]


@pytest.mark.parametrize("mark", [list, colored, grouped], ids=lambda mark: mark.__name__)
def test_the_causes_of_an_exception_are_found_however_its_traceback_is_marked(mark) -> None:
    frame = frames("/home/me/train.py", 7)
    chain = [HEADER, *frame, "ValueError: a", "", LINKS[0], "", HEADER, *frame, "RuntimeError: b"]
    texts = ("RuntimeError: b", "ValueError: a")
    lines = mark(chain)
    assert chain_in_output(lines, 1) == texts
    assert chain_in_reply("reply", "\n".join(lines)) == ("reply", *texts)


@pytest.mark.parametrize("name", ["Process-1", "SpawnProcess-2", "ForkPoolWorker-3", "Process-1:2"])
def test_the_traceback_of_a_child_did_not_end_the_worker(name) -> None:
    child = [f"Process {name}:", HEADER, *frames("/home/me/data.py", 3), "ValueError: a"]
    own = [HEADER, *frames("/home/me/train.py", 7), "RuntimeError: bad batch"]
    assert are_asides(child)
    assert not are_asides([*own, *child])
    assert not are_asides([])
    assert failure_with(child).raised.exception == ""
    assert failure_with([*own, *child]).headline == "RuntimeError: bad batch (train.py:7)"


@pytest.mark.parametrize(
    "lines", [["\ufffd\ufffd"], ["Traceback (most recent call last):"], ["  | ", "  + "], [""]]
)
def test_garbage_has_no_exception(lines) -> None:
    assert failure_with(lines).raised.exception == ""
    assert not are_asides(lines)


def test_a_traceback_in_colors_is_read_as_one_without() -> None:
    """Python 3.13 writes it to a terminal."""
    lines = [
        HEADER,
        '  File \x1b[35m"/home/me/train.py"\x1b[0m, line \x1b[35m7\x1b[0m, in \x1b[35mmain\x1b[0m',
        '    raise RuntimeError\x1b[1;31m("bad batch")\x1b[0m',
        "\x1b[1;35mRuntimeError\x1b[0m: \x1b[35mbad batch\x1b[0m",
    ]
    assert failure_with(lines).headline == "RuntimeError: bad batch (train.py:7)"
