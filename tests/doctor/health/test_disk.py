"""The health check `disk`, in temporary folders."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from plaunch_doctor.disks import DiskCheck


@pytest.fixture
def shared(tmp_path):
    """The folder that replaces /dev/shm."""
    folder = tmp_path / "shm"
    folder.mkdir()
    return folder


@pytest.fixture
def check(shared):
    """Create the check."""
    return lambda context: DiskCheck(context, str(shared))


@pytest.fixture
def temporary(tmp_path, monkeypatch, shared):
    """The folder for temporary files."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.fixture
def space(monkeypatch):
    """Free and total MiB by the last part of a folder's name."""
    sizes = {}
    real = os.statvfs

    def statvfs(folder):
        found = sizes.get(os.path.basename(folder))
        if found is None:
            return real(folder)
        free, total = found
        return SimpleNamespace(f_bavail=free, f_blocks=total, f_frsize=1 << 20, f_files=0)

    monkeypatch.setattr("os.statvfs", statvfs)
    return sizes


def test_all_folders_are_written_to_and_left_unchanged(
    context, run, check, temporary, shared, tmp_path, space
):
    logs = tmp_path / "logs"
    logs.mkdir()
    space.update(tmp=(500, 900), logs=(700, 900), shm=(60, 64))
    found = run(check(context(log_dir=str(logs))))
    assert found == [
        f"{temporary} has 500 MiB free",
        f"{logs} has 700 MiB free",
        f"{shared} has 60 MiB free",
    ]
    assert [*temporary.iterdir(), *logs.iterdir(), *shared.iterdir()] == []


def test_a_floor_may_be_given(context, run, check, temporary, space):
    space.update(tmp=(12, 900), shm=(60, 64))
    assert run(check(context()))[0] == f"! {temporary} has 12 MiB free, less than 100 MiB"
    assert run(check(context("10M")))[0] == f"{temporary} has 12 MiB free"


def test_shared_memory_may_be_small_but_not_full(context, run, check, temporary, shared, space):
    space.update(tmp=(500, 900), shm=(6, 64))
    assert run(check(context()))[1] == f"! {shared} has 6 MiB free, less than 6.4 MiB"


def test_folders_that_are_not_writable(context, run, check, temporary, tmp_path, monkeypatch):
    occupied = tmp_path / "file"
    occupied.touch()
    found = run(check(context(log_dir=str(occupied))))
    assert found[1] == f"! {occupied} cannot be written to: Not a directory"
    monkeypatch.setattr("os.fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "No space left")))
    assert run(check(context()))[0] == f"! {temporary} cannot be written to: No space left"
    assert list(temporary.iterdir()) == []


def test_a_log_folder_that_does_not_exist_yet(context, run, check, temporary, tmp_path):
    found = run(check(context(log_dir=str(tmp_path / "new" / "logs"))))
    assert found[1].startswith(f"{tmp_path} has ")
    assert not (tmp_path / "new").exists()
