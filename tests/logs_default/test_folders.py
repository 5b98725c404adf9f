"""Temporary folders: locked by their launcher, and swept when it is gone."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys

import pytest
from plaunch.doctor import DoctorContext, Status
from plaunch.errors import LogDirectoryError
from plaunch_logs_default import DefaultLogsSpecs, folders
from plaunch_logs_default.folders import (
    TemporaryFolder,
    create_locked,
    create_temporary_log_folder,
    find_stale_folders,
    planned_temporary_folder,
    read_boot_id,
    sweep,
)

from helpers.programs import run_python
from helpers.waiting import wait_until

BOOT_ID = read_boot_id()


@pytest.fixture
def base(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def make(base):
    def make(boot):
        path = f"{base}/plaunch_run_{boot}-{os.urandom(4).hex()}"
        os.mkdir(path)
        return path

    return make


def reify(layout):
    layout.reify({0: {"TORCHELASTIC_RUN_ID": "run"}})
    return layout.temporary_dir


def test_the_boot_id():
    assert len(BOOT_ID) == 8
    assert read_boot_id("/nonexistent") == ""


def test_a_folder_is_locked_until_it_is_removed(base):
    layout = DefaultLogsSpecs()
    folder = reify(layout)
    assert os.path.basename(folder).startswith(f"plaunch_run_{BOOT_ID}-")
    assert find_stale_folders(str(base)) == []
    sweep(str(base))
    assert os.path.isdir(folder)
    fds = set(os.listdir("/proc/self/fd"))
    layout.close(True)
    assert os.listdir(base) == []
    assert len(fds - set(os.listdir("/proc/self/fd"))) == 1


MAKE = """\
import os, sys
from plaunch_logs_default import DefaultLogsSpecs
layout = DefaultLogsSpecs()
layout.reify({0: {"TORCHELASTIC_RUN_ID": "run"}})
print(layout.temporary_dir, flush=True)
sys.stdin.read()
"""


def test_the_next_launch_removes_the_folder_of_one_that_was_killed(base):
    with subprocess.Popen(
        [sys.executable, "-c", MAKE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as launcher:
        folder = launcher.stdout.readline().rstrip("\n")
        with open(os.path.join(folder, "attempt_0", "0", "error.json"), "w") as file:
            file.write("{}")
        layout = DefaultLogsSpecs()
        reify(layout)
        layout.close(True)
        assert os.listdir(base) == [os.path.basename(folder)]
        launcher.kill()
    assert find_stale_folders(str(base)) == [folder]
    layout = DefaultLogsSpecs()
    reify(layout)
    layout.close(False)
    assert os.listdir(base) == []


@pytest.mark.parametrize(
    "name",
    [
        "plaunch_run_0a0b0c0d",  # with logs, or of an earlier version
        "plaunch_run_00000000-0a0b0c0d",  # of another boot, or of another system
        f"precious_run_{BOOT_ID}-0a0b0c0d",
        f"plaunch_run_{BOOT_ID}",
        "link",
        "file",
        "another user's",
    ],
)
def test_other_folders_are_not_swept(base, name, tmp_path_factory, monkeypatch):
    target = tmp_path_factory.mktemp("target")
    path = base / (name if "_" in name else f"plaunch_run_{BOOT_ID}-0a0b0c0d")
    if name == "link":
        path.symlink_to(target)
    elif name == "file":
        path.touch()
    else:
        path.mkdir()
    if name == "another user's":
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    sweep(str(base))
    assert find_stale_folders(str(base)) == []
    assert os.listdir(base) == [path.name]
    assert target.is_dir()


def test_a_folder_with_other_files_is_not_swept(base):
    folder = base / f"plaunch_run_{BOOT_ID}-0a0b0c0d"
    (folder / "attempt_0" / "0").mkdir(parents=True)
    (folder / "attempt_0" / "0" / "model.pt").touch()
    sweep(str(base))
    assert find_stale_folders(str(base)) == [str(folder)]


def test_one_launch_sweeps_a_limited_number_of_folders(base):
    for number in range(20):
        (base / f"plaunch_run_{BOOT_ID}-{number:08x}").mkdir()
    sweep(str(base))
    assert len(os.listdir(base)) == 4


def test_a_folder_swept_before_it_is_locked_is_created_again(base, make):
    made = []

    def make_and_lose(boot):
        made.append(make(boot))
        if len(made) == 1:
            sweep(str(base))
        return made[-1]

    path, fd = create_locked(make_and_lose)
    os.close(fd)
    assert [path] == made[1:] == [str(child) for child in base.iterdir()]


def test_a_folder_locked_by_another_sweep_is_created_again(make):
    made = []
    others = []

    def make_and_look(boot):
        made.append(make(boot))
        if len(made) == 1:
            others.append(os.open(made[0], os.O_RDONLY))
            fcntl.flock(others[0], fcntl.LOCK_EX)
        return made[-1]

    path, fd = create_locked(make_and_look)
    assert path == made[1]
    for each in (fd, *others):
        os.close(each)


def test_a_folder_swept_during_the_lock_is_created_again(make, monkeypatch):
    flock = fcntl.flock
    lost = []

    def lose(fd, how):
        if not lost:
            lost.append(os.readlink(f"/proc/self/fd/{fd}"))
            shutil.rmtree(lost[0])
        flock(fd, how)

    monkeypatch.setattr(folders.fcntl, "flock", lose)
    path, fd = create_locked(make)
    os.close(fd)
    assert os.path.isdir(path)
    assert path not in lost


def test_folders_that_cannot_be_locked_have_a_name_that_is_not_swept(base, monkeypatch):
    def refuse(fd, how):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(folders.fcntl, "flock", refuse)
    folder = reify(DefaultLogsSpecs())
    monkeypatch.undo()
    sweep(str(base))
    assert [str(child) for child in base.iterdir()] == [folder]


def test_the_doctor_reports_folders_of_killed_launchers(tmp_path):
    boot_id = tmp_path / "proc/sys/kernel/random/boot_id"
    boot_id.parent.mkdir(parents=True)
    boot_id.write_text("01234567-89ab-cdef-0123-456789abcdef\n")
    context = DoctorContext(environ={}, root=str(tmp_path))
    find_leftovers = DefaultLogsSpecs().doctor_findings
    assert find_leftovers(context) == []
    for name in ("01234567-0a0b0c0d", "76543210-0a0b0c0d", "0a0b0c0d"):
        (tmp_path / "tmp" / f"plaunch_mine_{name}").mkdir(parents=True)
    (found,) = find_leftovers(context)
    assert found.status is Status.WARNING
    assert found.found.startswith("1 temporary folder(s) of launchers that were killed: ")
    assert found.found.endswith("/tmp/plaunch_mine_01234567-0a0b0c0d")


def test_no_sweep_when_workers_start(base):
    """Another program has removed the folder, so `reify` creates another one."""
    layout = DefaultLogsSpecs()
    shutil.rmtree(reify(layout))
    (base / f"plaunch_run_{BOOT_ID}-0a0b0c0d").mkdir()
    reify(layout)
    assert len(os.listdir(base)) == 2
    layout.close(True)
    assert os.listdir(base) == []


@pytest.mark.parametrize("name", ["run", ".a b", "x" * 300])
def test_the_planned_folder_is_created(base, name):
    planned = planned_temporary_folder(name)
    folder = TemporaryFolder.create(name)
    assert folder.path.startswith(f"{planned}_")
    assert len(folder.path) == len(f"{planned}_{BOOT_ID}-0a0b0c0d")
    folder.remove()
    assert create_temporary_log_folder(name).startswith(f"{planned}_")


def test_a_deleted_current_folder_is_reported(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    layout = DefaultLogsSpecs("logs")
    (tmp_path / "gone").rmdir()
    with pytest.raises(LogDirectoryError, match="'logs' is relative to the current folder"):
        layout.reify({0: {}})


def test_the_next_launch_cleans_up_after_sigkill(base):
    """The next launch removes the folders that the guard does not."""
    env = {**os.environ, "PLAUNCH_GUARD": "0"}
    stop = "import os, signal, plaunch.process.supervised as s\n"
    stop += "s.SupervisedContext._start = lambda self: os.kill(os.getpid(), signal.SIGKILL)\n"
    stop += "from plaunch.cli import entry_point\nentry_point()\n"
    killed = run_python("-c", stop, "--no-python", "true", env=env)
    assert killed.returncode == -signal.SIGKILL
    assert len(os.listdir(base)) == 1
    run_python("-m", "plaunch", "--no-python", "true", env=env, check=True)
    wait_until(lambda: os.listdir(base) == [], lambda: os.listdir(base))


# --- a log directory that a node does not have ----------------------------------------------------


def test_a_log_directory_whose_parent_is_missing_is_made_but_named(tmp_path, caplog):
    """It may be on a file system that is not mounted on this node."""
    caplog.set_level("INFO", "plaunch")
    DefaultLogsSpecs(log_dir=str(tmp_path / "logs")).create_run_dir("job")
    assert caplog.messages == []
    folder = tmp_path / "shared" / "experiment" / "logs"
    for _ in range(2):
        DefaultLogsSpecs(log_dir=str(folder)).create_run_dir("job")
    (said,) = caplog.messages
    host = os.uname().nodename
    assert said.startswith(f"{str(tmp_path / 'shared')!r} did not exist on {host} and was created")
    assert "its file system is not mounted here" in said


def test_a_log_directory_that_cannot_be_made_names_the_host():
    with pytest.raises(LogDirectoryError, match=rf"cannot be created on {os.uname().nodename}: "):
        folders.create_log_folder("/proc/self/no/logs", "job")
