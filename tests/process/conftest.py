"""Fixtures of these tests: error files, and programs that sleep."""

import subprocess

import pytest

from helpers.error_files import child_file

__all__ = ["child_file", "sleep"]


@pytest.fixture
def sleep():
    """Start programs that sleep, and end those that are left when the test is over."""
    started = []

    def sleep(**options):
        started.append(subprocess.Popen(["sleep", "600"], **options))
        return started[-1]

    yield sleep
    for process in started:
        process.kill()
        process.wait()
