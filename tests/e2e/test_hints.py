"""Real failures whose cause the worker cannot say: what the report finds out about them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from helpers.waiting import BOUND

ABORT = "killed by SIGABRT (signal 6)"
NEEDS_ROOT = pytest.mark.needs("root", "mounts")
# libstdc++ itself throws, or gives up.
LIBRARY = 'import ctypes, os, sys; library = ctypes.CDLL("libstdc++.so.6")\n'
THROW = 'library._ZSt21__throw_runtime_errorPKc(b"ranks disagree: ALLREDUCE and BROADCAST")\n'
END = "import atexit; atexit.register(library._ZSt9terminatev); print('done')\n"
MISMATCH = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4 * (1 + dist.get_rank())))
dist.barrier()
"""
MAPPED = """\
import mmap, sys
file = open(sys.argv[1] + "/mapped", "w+b")
file.truncate(1 << 20)
memory = mmap.mmap(file.fileno(), 1 << 20)
for place in range(0, 1 << 20, 4096):
    memory[place] = 1
"""
SAVE = "import sys, torch; torch.save(torch.zeros(100_000), sys.argv[1] + '/checkpoint.pt')\n"
WRITE = "import sys\nfor n in range(9): open(f'{sys.argv[1]}/{n}', 'wb', 0).write(bytes(1 << 15))\n"


def report(plaunch, program, *argv, options=(), within=(), **environ):
    """Run a program that fails; return the headline and the hints of its report."""
    words = (*options, plaunch.write("train.py", program), *argv)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with plaunch.popen(*words, within=within, environ=environ, **pipes) as process:
        _, err = process.communicate(timeout=BOUND)
    lines = err.splitlines()
    headline = next(line for line in lines if line.startswith("plaunch: rank "))
    return headline, [line.strip() for line in lines if line.startswith("  hint: ")]


def with_disk(folder):
    """The command of a program that runs another one with a file system of 64 KiB there."""
    mount = 'mount -t tmpfs -o size=64k tmpfs "$0" && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", mount, str(folder)]


def test_an_abort_says_what_cpp_threw(plaunch):
    headline, hints = report(plaunch, LIBRARY + THROW)
    said = "std::runtime_error: ranks disagree: ALLREDUCE and BROADCAST"
    assert headline.endswith(f"{ABORT}: {said}")
    assert "PYTHONFAULTHANDLER" in hints[0]


@pytest.mark.slow
def test_a_mismatch_of_collectives_is_in_the_headline(plaunch):
    pytest.importorskip("torch.distributed")
    headline, _ = report(plaunch, MISMATCH, options=["--nproc-per-node=2"])
    assert f"{ABORT}: gloo::EnforceNotMet: " in headline
    # torch 2.6 has the words of the check itself.
    assert "collective mismatch" in headline or "op.preamble.length <= op.nbytes" in headline


def test_an_abort_at_the_end_of_the_interpreter_is_explained(plaunch):
    headline, hints = report(plaunch, LIBRARY + END)
    assert f"{ABORT}: terminate called without an active exception" in headline
    assert len(hints) == 1
    assert "call destroy_process_group() at its end" in hints[0]


PRINTED = """\
for line in (
    "terminate called after throwing an instance of 'std::runtime_error'",
    "  what():  not the cause",
    "[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598",
    "ModuleNotFoundError: No module named 'flash_attn'",
    "terminate called without an active exception",
    "OSError: [Errno 28] No space left on device",
    "step 2",
):
    print(line, file=sys.stderr, flush=True)
"""


@pytest.mark.parametrize("end", ["os.abort()", "sys.exit(1)", "raise ValueError('bad')"])
def test_the_same_words_in_other_output_are_no_cause(plaunch, end):
    headline, hints = report(plaunch, f"import os, sys\n{PRINTED}{end}\n", VIRTUAL_ENV="/other")
    assert not any(word in headline for word in ("what", "not the cause", "terminate", "Module"))
    assert all("PYTHONFAULTHANDLER" in hint for hint in hints)


def test_a_caught_exception_is_no_cause(plaunch):
    program = (
        "import traceback\ntry:\n    import no_such_module\nexcept ImportError:\n"
        "    traceback.print_exc()\nraise ValueError('bad')\n"
    )
    headline, hints = report(plaunch, program)
    assert "ValueError: bad" in headline
    assert hints == []


def test_a_missing_module_names_the_interpreter_and_another_active_environment(plaunch):
    program, python = "import no_such_module\n", sys.executable
    _, hints = report(plaunch, program, VIRTUAL_ENV="/home/me/venv", CONDA_PREFIX="")
    assert hints == [
        f"hint: its interpreter is {python}, but VIRTUAL_ENV is /home/me/venv, another "
        "environment; to use that one, write /home/me/venv/bin/python -m plaunch, with plaunch "
        "installed there"
    ]
    _, hints = report(plaunch, program, VIRTUAL_ENV=sys.prefix, CONDA_PREFIX="")
    assert hints == [
        f"hint: its interpreter is {python}; install the module for it, or start plaunch with the "
        "interpreter that has it"
    ]


def test_a_module_in_the_working_folder_is_not_to_be_installed(plaunch):
    plaunch.write("models.py", "")
    (plaunch.folder / "scripts").mkdir()
    script = plaunch.write("scripts/train.py", "import models\n")
    done = plaunch.run(script)
    assert (
        "which does not look for 'models' in the working folder; write PYTHONPATH=." in done.stderr
    )


@NEEDS_ROOT
@pytest.mark.parametrize("folder", ["/dev/shm", "{}/disk"])
def test_a_bus_error_says_which_file_system_is_full(plaunch, folder):
    folder = folder.format(plaunch.folder)
    os.makedirs(folder, exist_ok=True)
    headline, hints = report(plaunch, MAPPED, folder, within=with_disk(folder))
    assert headline.endswith("killed by SIGBUS (signal 7)")
    if folder == "/dev/shm":
        assert "SIGBUS, because /dev/shm is full: /dev/shm had 0 bytes of 64 KiB free" in hints[0]
    else:
        assert "; /dev/shm had " in hints[0]
        assert f"{folder} has 0 bytes of 64 KiB free" in hints[0]


@NEEDS_ROOT
def test_a_full_disk_is_named(plaunch):
    folder = str(plaunch.folder / "disk")
    os.makedirs(folder)
    headline, hints = report(plaunch, WRITE, folder, within=with_disk(folder))
    assert "No space left on device" in headline
    assert any(f"{folder} has 0 bytes of 64 KiB free" in hint for hint in hints)


@NEEDS_ROOT
@pytest.mark.slow
def test_torchs_unexpected_position_is_a_full_disk(plaunch):
    pytest.importorskip("torch")
    folder = str(plaunch.folder / "disk")
    os.makedirs(folder)
    headline, hints = report(plaunch, SAVE, folder, within=with_disk(folder))
    assert "unexpected pos" in headline
    assert hints[0].startswith("hint: torch could not write a whole file, often for lack of space:")
    assert f"{folder} has " in hints[0]
