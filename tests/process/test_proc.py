"""Reading /proc: a real one, and folders that stand for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from plaunch.process.proc import (
    Process,
    ancestors_of,
    find_field,
    find_variable,
    is_waiting_for_child,
    list_numbers,
    may_signal,
    read_adopted,
    read_command,
    read_fds,
    read_link,
    read_name,
    read_proc,
    read_stack,
    read_stat,
    read_waiting_place,
)

from helpers.waiting import wait_until

GONE = 1 << 30  # above the highest pid


def test_a_file_is_read_whole_and_a_missing_one_is_empty():
    assert read_proc("self/status").startswith(b"Name:")
    assert read_proc(f"{GONE}/status") == b""


def test_this_process_is_among_all():
    assert os.getpid() in list_numbers()
    assert os.getpid() in list_numbers("self/task")
    assert list_numbers(f"{GONE}/task") == set()


def test_open_files_have_their_targets(tmp_path):
    with open(tmp_path / "file", "w") as file:
        assert read_fds("self")[file.fileno()] == str(tmp_path / "file")
    assert read_fds(GONE) == {}


def test_a_link_of_a_process_that_is_gone_is_empty():
    assert read_link("self/cwd") == os.getcwd()
    assert read_link(f"{GONE}/cwd") == ""


def test_the_words_of_a_command():
    with subprocess.Popen([sys.executable, "-c", "input()", "two words", ""], stdin=-1) as process:
        wait_until(lambda: read_command(process.pid)[1:2] == ["-c"], "its execve")
        assert read_command(process.pid)[2:] == ["input()", "two words", ""]
        process.kill()
    assert read_command(GONE) == []


def test_a_variable_of_an_environment():
    environ = b"A=1\0AB=x=y\0C=\0"
    assert [find_variable(environ, name) for name in ("A", "AB", "C", "B")] == ["1", "x=y", "", ""]
    assert find_variable(b"", "A") == ""


def test_the_fields_of_stat_begin_with_the_state():
    assert read_stat(os.getpid())[:2] == [b"R", str(os.getppid()).encode()]
    assert read_stat(GONE) == []


def test_a_name_may_contain_anything(tmp_path):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text("7 (a) b (c) S 1 7 7\n")
    assert read_stat(7, str(tmp_path)) == [b"S", b"1", b"7", b"7"]


@pytest.mark.parametrize(
    ("name", "value"), [("Uid", "0\t0"), ("State", "T (stopped)"), ("Gid", ""), ("d", "")]
)
def test_a_field_is_found_by_its_whole_name(name, value):
    assert find_field(b"Name:\tsh\nState:\tT (stopped)\nUid:\t0\t0\n", name) == value


@pytest.mark.parametrize(
    ("wchan", "stack", "place"),
    [
        ("do_wait", "", "do_wait"),
        ("0", "[<0>] io_schedule+0x46/0x80\n[<0>] read+0x1/0x2\n", "io_schedule"),
        ("", "", ""),
    ],
)
def test_where_a_process_waits(tmp_path, wchan, stack, place):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "wchan").write_text(wchan)
    (tmp_path / "7" / "stack").write_text(stack)
    assert read_waiting_place(7, str(tmp_path)) == place
    assert read_stack(7, str(tmp_path)) == (["io_schedule", "read"] if stack else [])


def test_the_name_of_a_process_has_no_end_of_line(tmp_path):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "comm").write_text("python\n")
    assert (read_name(7, str(tmp_path)), read_name(8, str(tmp_path))) == ("python", "")


def test_whether_a_process_may_be_signalled_is_found_without_a_signal():
    with subprocess.Popen(["sleep", "600"]) as process:
        assert may_signal(process.pid)
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert may_signal(process.pid)  # it is gone, so that nothing forbids it


@pytest.mark.parametrize(
    ("name", "wchan", "is_waiting"),
    [
        *((name, "0", True) for name in ("ash", "bash", "busybox", "dash", "fish", "ksh", "mksh")),
        *((name, "0", True) for name in ("sh", "tcsh", "zsh")),
        ("python", "do_wait", True),
        ("python", "ep_poll", False),
        ("bash_script", "0", False),
    ],
)
def test_shells_and_what_waits_for_a_child(tmp_path, name, wchan, is_waiting):
    folder = tmp_path / "12"
    folder.mkdir()
    (folder / "stat").write_text(f"12 ({name}) S 1 12 12 0\n")
    (folder / "comm").write_text(f"{name}\n")
    (folder / "wchan").write_text(wchan)
    assert is_waiting_for_child(12, str(tmp_path)) is is_waiting


def test_without_a_list_of_children_they_are_unknown(tmp_path):
    assert read_adopted(str(tmp_path)) is None


def test_the_ancestors_of_a_process_end_where_the_table_does():
    table = {pid: Process(pid, ppid) for pid, ppid in ((5, 4), (4, 3), (3, 1), (7, 7))}
    assert ancestors_of(table, 5) == {5, 4, 3}
    assert ancestors_of(table, 7) == {7}
    assert ancestors_of(table, 9) == set()
