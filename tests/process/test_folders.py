"""Folders in which no file can be created."""

from __future__ import annotations

import os

import pytest
from plaunch.process import why_not_writable


def test_an_ordinary_folder(tmp_path):
    assert why_not_writable(str(tmp_path)) == ""


@pytest.mark.parametrize("folder", ["/proc", "/proc/self/fd"])
def test_the_kernels_own_take_no_files(folder):
    """The superuser may write there, says the system."""
    allowed = os.access(folder, os.W_OK | os.X_OK)
    reason = "belongs to the kernel (proc), which takes no files there"
    assert why_not_writable(folder) == (reason if allowed else "is not writable for this user")


def test_what_is_not_a_folder(tmp_path):
    (tmp_path / "file").touch()
    assert why_not_writable(str(tmp_path / "file")) == "is not a folder"
    assert why_not_writable(str(tmp_path / "nothing")) == "does not exist"


def test_a_link_to_one(tmp_path):
    (tmp_path / "link").symlink_to("/proc/self/fd")
    assert why_not_writable(str(tmp_path / "link"))
