"""Failures of the launcher itself, among those of workers."""

from __future__ import annotations

import os

from plaunch.process.failure import ProcessFailure

LAUNCHER = -1  # the "rank" of a failure of the launcher, in reports


def launcher_failure(text: str, exitcode: int) -> ProcessFailure:
    """A failure of the launcher, for example of the store that it hosts.

    Args:
        text: what happened.
        exitcode: the exit code that the launch ends with because of it.
    """
    failure = ProcessFailure(LAUNCHER, os.getpid(), exitcode, "")
    failure.message = text
    failure.error_file_data = {"message": text}
    failure.global_rank = LAUNCHER
    return failure
