from __future__ import annotations

import contextlib
import ctypes
import io
import os
import subprocess
import sys

import pytest
from plaunch.errors import UsageError
from plaunch_torchrun.redirects import (
    get_libc,
    get_std_cm,
    redirect,
    redirect_stderr,
    redirect_stdout,
)

from helpers.programs import run_python

PROLOGUE = """
import ctypes, os, sys
from plaunch_torchrun.redirects import redirect, redirect_stderr, redirect_stdout
libc = ctypes.CDLL(None)
a, b = sys.argv[1:3]
"""


def run(body, tmp_path):
    """Run a program on pipes, where Python and C keep back what they print; its two files too."""
    files = tmp_path / "a.log", tmp_path / "b.log"
    done = run_python("-c", PROLOGUE + body, *files)
    texts = [file.read_text() if file.exists() else None for file in files]
    return done, *texts


def test_python_c_and_children_go_to_the_file_and_back(tmp_path):
    body = """
print("python before"); libc.printf(b"c before\\n")
with redirect_stdout(a):
    print("python inside"); libc.printf(b"c inside\\n"); sys.stdout.flush()
    os.system("echo child inside")
    print("error inside", file=sys.stderr)
print("python after"); libc.printf(b"c after\\n"); sys.stdout.flush()
os.system("echo child after")
"""
    done, inside, _ = run(body, tmp_path)
    assert sorted(inside.splitlines()) == ["c inside", "child inside", "python inside"]
    assert sorted(done.stdout.splitlines()) == [
        "c after",
        "c before",
        "child after",
        "python after",
        "python before",
    ]
    assert (done.returncode, done.stderr) == (0, "error inside\n")


STDERR = """
with redirect_stderr(a):
    print("inside", file=sys.stderr); os.system("echo child >&2"); print("out")
print("after", file=sys.stderr)
"""
NESTED = """
with redirect("stdout", a):
    print("outer 1")
    with redirect("stdout", b):
        print("inner")
    print("outer 2")
print("outside")
"""
ONE_FILE = """
with redirect_stdout(a), redirect_stderr(a):
    for n in range(3):
        print("out", n, flush=True); print("err", n, file=sys.stderr, flush=True)
"""
EXCEPTION = """
try:
    with redirect_stdout(a):
        print("inside"); raise ValueError
except ValueError:
    print("after")
"""
CLOSED = """
os.close(1)
with redirect_stdout(a):
    os.write(1, b"inside\\n"); print("python")
try:
    os.fstat(1)
except OSError:
    os.write(2, b"closed")
"""


@pytest.mark.parametrize(
    ("body", "a", "b", "out", "err"),
    [
        (STDERR, "inside\nchild\n", None, "out\n", "after\n"),
        (NESTED, "outer 1\nouter 2\n", "inner\n", "outside\n", ""),
        (ONE_FILE, "out 0\nerr 0\nout 1\nerr 1\nout 2\nerr 2\n", None, "", ""),
        (EXCEPTION, "inside\n", None, "after\n", ""),
        (CLOSED, "inside\npython\n", None, "", "closed"),
    ],
    ids=["stderr", "blocks that nest", "both into one file", "an exception", "a closed stream"],
)
def test_a_stream_goes_to_the_file_and_back(tmp_path, body, a, b, out, err):
    done, *files = run(body, tmp_path)
    assert (*files, done.stdout, done.stderr) == (a, b, out, err)


def test_a_process_that_started_without_stdout(tmp_path):
    body = """
assert sys.stdout is None
with redirect_stdout(a):
    print("inside")
assert sys.stdout is None
"""
    command = f'exec "$0" -c "$1" {tmp_path}/a.log {tmp_path}/b.log >&-'
    subprocess.run(["sh", "-c", command, sys.executable, PROLOGUE + body], check=True, timeout=60)
    assert (tmp_path / "a.log").read_text() == "inside\n"


def test_python_output_follows_where_sys_stdout_is_another_object(tmp_path, monkeypatch):
    fake = io.StringIO()
    monkeypatch.setattr(sys, "stdout", fake)
    with redirect_stdout(str(tmp_path / "a.log")):
        print("inside")
        os.write(1, b"descriptor\n")
    print("after")
    assert (tmp_path / "a.log").read_text() == "inside\ndescriptor\n"
    assert fake.getvalue() == "after\n"
    assert sys.stdout is fake


def test_an_object_that_the_block_installs_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    mine = io.StringIO()
    with redirect_stdout(str(tmp_path / "a.log")):
        sys.stdout = mine
    assert sys.stdout is mine


def test_the_file_is_overwritten_and_children_keep_it(tmp_path):
    path = tmp_path / "a.log"
    path.write_text("earlier")
    with redirect_stdout(str(path)):
        child = subprocess.Popen(["sh", "-c", "read line; echo late"], stdin=subprocess.PIPE)
        os.write(1, b"now\n")
    child.communicate(b"\n", timeout=60)
    assert path.read_text() == "now\nlate\n"


def test_nothing_is_left_open(tmp_path):
    before = os.listdir("/proc/self/fd")
    with redirect_stdout(str(tmp_path / "a.log")), redirect_stderr(str(tmp_path / "b.log")):
        pass
    assert os.listdir("/proc/self/fd") == before


def test_a_file_that_cannot_be_opened_changes_nothing(tmp_path, capfd):
    with pytest.raises(FileNotFoundError), redirect_stdout(str(tmp_path / "no" / "a.log")):
        pytest.fail("the block ran")
    os.write(1, b"still here")
    assert capfd.readouterr().out == "still here"


@pytest.mark.parametrize("std", ["stdin", "", "STDOUT"])
def test_another_word_is_refused(std, tmp_path):
    with pytest.raises(UsageError, match="is not a standard stream; choices: stderr, stdout"):
        redirect(std, str(tmp_path / "a.log")).__enter__()
    assert issubclass(UsageError, ValueError)


def test_a_python_without_ctypes_still_redirects(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctypes", None)
    assert get_libc() is None
    with redirect_stdout(str(tmp_path / "a.log")):
        print("inside")
    assert (tmp_path / "a.log").read_text() == "inside\n"


def test_get_libc_is_this_process():
    assert get_libc().getpid() == os.getpid()
    assert isinstance(get_libc(), ctypes.CDLL)


def test_get_std_cm(tmp_path):
    calls = []

    @contextlib.contextmanager
    def fake(path):
        calls.append(path)
        yield

    with get_std_cm("", fake):
        assert calls == []
    with get_std_cm("x.log", fake):
        assert calls == ["x.log"]
