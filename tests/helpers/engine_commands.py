"""Commands that start the agents of a job: `plaunch --on=...`."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from helpers.waiting import wait_until

LIMIT = 60.0  # seconds for the end of a command


class EngineCommand:
    """A running command, whose output of both streams is in one file."""

    def __init__(self, folder, *words, env=None):
        self.folder = folder
        self.output = folder / "output"
        with open(self.output, "wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "plaunch", *map(str, words)],
                cwd=folder, stdout=file, stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
            )  # fmt: skip

    def text(self):
        return self.output.read_text()

    def wait_for(self, pattern, count=1):
        wait_until(
            lambda: len(re.findall(pattern, self.text())) >= count,
            lambda: f"{pattern!r} in {self.text()}",
        )

    def end(self):
        return self.process.wait(LIMIT)
