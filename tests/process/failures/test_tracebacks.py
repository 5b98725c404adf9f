"""What is read from tracebacks: the exception, and the last line of the user's own code."""

from __future__ import annotations

import json
import os
import signal
import sysconfig

import pytest
from plaunch.process import ProcessFailure, shorten
from plaunch.process.failures.tracebacks import is_own

from helpers.programs import run_python

HEADER = "Traceback (most recent call last):"
TORCH = "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py"


def frames(path, *lines, function="f"):
    return [
        text
        for line in lines
        for text in (f'  File "{path}", line {line}, in {function}', f"    call_{line}()")
    ]


def failure_with(*lines, exitcode=1):
    failure = ProcessFailure(0, 7, exitcode, "")
    failure.last_lines = list(lines)
    return failure


# --- whose a file is ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/home/me/train.py",
        "train.py",
        "/opt/lib/train.py",
        "/home/me/torch/train.py",
        "/home/me/python3.11/train.py",
        "<string>",
        "/tmp/ipykernel_7/1.py",
    ],
)
def test_files_of_the_user(path) -> None:
    assert is_own(path)


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
    assert not is_own(path)


# --- the place ------------------------------------------------------------------------------------


def test_the_users_line_beneath_frames_of_torch() -> None:
    lines = [HEADER, *frames("/home/me/train.py", 80, 39), *frames(TORCH, 1, 2, 3)]
    failure = failure_with(*lines, "ValueError: bad shape")
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
    assert failure_with(HEADER, *lines, "E: no").place == place


def test_of_a_chain_it_is_that_of_the_last_exception() -> None:
    lines = [HEADER, *frames("/home/me/a.py", 1), "KeyError: 1", "", "During handling ...:", ""]
    assert failure_with(*lines, HEADER, *frames(TORCH, 2), "E: no").place == "module.py:2"


def test_a_crash_that_faulthandler_has_seen(tmp_path) -> None:
    script = tmp_path / "train.py"
    code = "import os, signal\ndef step():\n    os.kill(os.getpid(), signal.SIGSEGV)\nstep()\n"
    script.write_text(code)
    done = run_python("-X", "faulthandler", script)
    failure = failure_with(*done.stderr.splitlines(), exitcode=done.returncode)
    assert failure.exitcode == -signal.SIGSEGV
    assert failure.headline == "killed by SIGSEGV (signal 11) (train.py:3)"


def test_an_exit_without_an_exception_has_no_place() -> None:
    lines = [HEADER, *frames("/home/me/a.py", 1), "KeyError: 1"]
    assert failure_with(*lines, exitcode=3).headline == "exit code 3"
    assert failure_with("it is over").headline == "exit code 1"


def test_a_long_text_is_cut_before_the_place() -> None:
    failure = failure_with(HEADER, *frames("/home/me/a.py", 1), f"E: {'x' * 500}")
    assert failure.headline.endswith("x... (a.py:1)")
    assert len(failure.brief) == 300


def test_what_another_node_has_read_stays() -> None:
    failure = failure_with("nothing")
    failure.place = "far.py:1"
    assert failure.headline == "exit code 1 (far.py:1)"


# --- what is kept of many lines -------------------------------------------------------------------


def test_few_lines_stay_as_they_are() -> None:
    assert shorten(["a", "b"], 2) == ["a", "b"]


def test_of_output_the_last_lines_stay() -> None:
    assert shorten([str(n) for n in range(50)], 3) == ["47", "48", "49"]


@pytest.mark.parametrize("mark", ["", "[rank3]: "])
def test_a_traceback_keeps_its_head_the_users_frames_and_the_exception(mark) -> None:
    own = frames("/home/me/train.py", 80, 39)
    after = [f"frame #{n}: c10d::work()" for n in range(30)]
    lines = [HEADER, *own, *frames(TORCH, *range(40)), "RuntimeError: closed", *after]
    lines = ["step 1", *(mark + line for line in lines)]
    kept = shorten(lines, 20)
    assert len(kept) == 20
    assert kept[:5] == [mark + line for line in (HEADER, *own)]
    assert kept[5].strip() == "... 80 lines left out ..."
    assert kept[6] == f"{mark}RuntimeError: closed"
    assert kept[-1] == mark + after[-1]
    failure = failure_with(*kept)
    assert failure.headline == "RuntimeError: closed (train.py:39)"


def test_of_many_own_frames_the_last_ones_stay() -> None:
    own = frames("/home/me/train.py", *range(100))
    kept = shorten([HEADER, *own, "E: no"], 10)
    assert kept[-1] == "E: no"
    assert own[-2] in kept
    assert own[0] not in kept
    assert len(kept) <= 10


def test_what_was_caught_long_before_makes_no_room() -> None:
    caught = [HEADER, *frames("/home/me/a.py", 1), "KeyError: 1"]
    lines = [*caught, *(f"step {n}" for n in range(30))]
    assert shorten(lines, 20) == lines[-20:]


def test_an_end_by_cpp_keeps_what_it_says() -> None:
    what = "  what():  [Rank 0] Watchdog caught collective operation timeout"
    lines = ["step 1", "terminate called after throwing an instance of 'E'", what]
    lines += [f"frame #{n}: c10d::work()" for n in range(40)]
    assert what in shorten(lines, 20)


@pytest.mark.parametrize("most", [40, 200, 500])
def test_characters_are_bounded_too(most) -> None:
    lines = [HEADER, *frames("/home/me/train.py", 39), *frames(TORCH, *range(40)), "E: no"]
    kept = shorten(lines, 1000, most)
    assert sum(len(line) + 1 for line in kept) <= most
    assert kept[-1] == "E: no"
    assert (most < 200) or any("train.py" in line for line in kept)
    assert shorten(["x" * 1000], 5, most) == ["x" * most]
