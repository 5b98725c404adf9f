"""The folders of launch sockets, their permissions, and the names of sockets."""

from __future__ import annotations

import os
import re
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as some
from plaunch_control.folder import (
    MOST_BYTES,
    FolderError,
    candidates,
    check,
    create,
    open_socket,
    read_name,
    remove_stale,
    socket_name,
    sockets,
    sweep,
)

ME = os.geteuid()


def test_candidate_folders():
    assert candidates({}, 7) == ["/run/user/7/plaunch", "/tmp/plaunch-7"]
    assert candidates({"XDG_RUNTIME_DIR": "/r"}, 7)[0] == "/r/plaunch"
    assert candidates({"XDG_RUNTIME_DIR": "r"}, 7) == candidates({}, 7)
    everywhere = {"XDG_RUNTIME_DIR": "/r", "PLAUNCH_RUNTIME_DIR": "/own"}
    assert candidates(everywhere, 7) == ["/own"]


@given(some.text(min_size=1), some.integers(1, 1 << 22))
def test_a_name_contains_the_run_id_and_pid(run_id, pid):
    name = socket_name("/run/user/1000/plaunch", run_id, pid)
    assert "/" not in name
    assert not name.startswith(".")
    path = os.fsencode(f"/run/user/1000/plaunch/.{name}")
    assert len(path) <= MOST_BYTES
    data, is_whole, number = read_name(name)
    assert number == pid
    if is_whole:
        assert data == run_id.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    else:
        assert run_id.startswith(data)


@given(some.text())
def test_reading_any_name_raises_nothing(name):
    assert read_name(name) is None or re.search(r"\.\d+\.[^.]*\Z", name)


def test_a_folder_with_a_path_that_is_too_long():
    with pytest.raises(FolderError, match="too long"):
        socket_name("/" + "x" * MOST_BYTES, "job", 1)


def test_a_folder_must_be_private(tmp_path):
    folder = str(tmp_path / "a")
    create(folder, ME)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    create(folder, ME)
    with pytest.raises(FolderError, match=f"belongs to user {ME}"):
        check(folder, ME + 1)
    os.chmod(folder, 0o750)
    with pytest.raises(FolderError, match="mode 0750"):
        check(folder, ME)


@pytest.mark.parametrize("make", [os.symlink, lambda to, path: open(path, "w").close()])
def test_a_file_is_not_a_folder(tmp_path, make):
    (tmp_path / "real").mkdir(0o700)
    path = str(tmp_path / "a")
    make(str(tmp_path / "real"), path)
    with pytest.raises(FolderError, match="is not a folder"):
        create(path, ME)


@pytest.fixture
def environ(runtime_dir):
    return {"PLAUNCH_RUNTIME_DIR": str(runtime_dir)}


def test_two_launches_with_one_run_id(environ):
    opened = [open_socket("job", environ, ME) for _ in range(2)]
    try:
        paths = list(sockets(environ["PLAUNCH_RUNTIME_DIR"]))
        assert paths == sorted(launch_socket.path for launch_socket in opened)
        assert not any(remove_stale(path) for path in paths)
    finally:
        for launch_socket in opened:
            launch_socket.listener.close()
    assert all(remove_stale(path) for path in paths)
    assert not os.listdir(environ["PLAUNCH_RUNTIME_DIR"])


def test_a_launch_removes_sockets_of_dead_launches(environ):
    folder = environ["PLAUNCH_RUNTIME_DIR"]
    launch_socket = open_socket("job", environ, ME)
    launch_socket.listener.close()
    dead = os.path.join(folder, f"job.{(1 << 22) + 1}.abcdef")  # no process has such a pid
    os.rename(launch_socket.path, dead)
    other = os.path.join(folder, "notes")
    open(other, "w").close()
    sweep(folder)
    assert os.listdir(folder) == ["notes"]


def test_the_error_explains_why_there_is_no_folder(environ):
    path = os.path.dirname(environ["PLAUNCH_RUNTIME_DIR"])
    environ["PLAUNCH_RUNTIME_DIR"] = f"{path}/no/such"
    with pytest.raises(FolderError, match="No such file"):
        open_socket("job", environ, ME)
