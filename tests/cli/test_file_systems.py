"""Files on a file system that does not answer: the launcher says so, and can be interrupted."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading

import pytest
from plaunch.cli.file_systems import await_file_system

from helpers.machine_parts import report_missing
from helpers.programs import running_python
from helpers.waiting import BOUND


def raise_missing():
    raise FileNotFoundError(2, "no such file", "x")


def test_the_result_and_the_error_are_those_of_the_function(capsys):
    assert await_file_system("the file 'x'", lambda: 7) == 7
    with pytest.raises(FileNotFoundError, match="no such file"):
        await_file_system("the file 'x'", raise_missing)
    assert capsys.readouterr().err == ""


def test_a_long_access_is_named_once_and_its_result_is_awaited(capfd):
    gate = threading.Event()
    threading.Timer(0.3, gate.set).start()
    assert await_file_system("the file 'x'", lambda: gate.wait(BOUND), 0.01)
    (line,) = capfd.readouterr().err.splitlines()
    assert "waiting for the file 'x': its file system has not answered for 0.01 s" in line


@contextlib.contextmanager
def dead_file_system(folder):
    """Mount a file system there whose server never answers, as of an NFS server that is down."""
    libc = ctypes.CDLL(None, use_errno=True)
    server = os.open("/dev/fuse", os.O_RDWR)
    given = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
    try:
        if libc.mount(b"dead", os.fsencode(folder), b"fuse", 0, given):
            report_missing("fuse", f"cannot mount: {os.strerror(ctypes.get_errno())}")
        yield
    finally:
        os.close(server)  # all accesses fail from now on
        libc.umount2(os.fsencode(folder), 2)


@pytest.mark.needs("root", "fuse")
@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["{}/train.py"], "the script '{}/train.py'"),
        (
            ["--config={}/plaunch.toml", "train.py"],
            "the settings file '{}/plaunch.toml' (--config)",
        ),
        (["--no-python", "{}/program"], "the program '{}/program'"),
    ],
)
def test_a_dead_file_system_is_named_and_ctrl_c_ends_the_launcher(tmp_path, words, what):
    folder = tmp_path / "server"
    folder.mkdir()
    words = [word.format(folder) for word in words]
    with dead_file_system(folder):
        with running_python("-m", "plaunch", *words, stderr=subprocess.PIPE) as process:
            said = process.stderr.readline()
            assert f"waiting for {what.format(folder)}: its file system has not answered" in said
            process.send_signal(signal.SIGINT)
            assert process.wait(BOUND) == 130
