"""Workers of a preloader, and executed ones for comparison."""

from __future__ import annotations

import os
import subprocess

from plaunch_preload.preloader import Preloader


class Fleet:
    """Starts workers with a preloader, or executes them."""

    def __init__(self, modules, command, timeout=30.0):
        self.command = command
        self.preloader = Preloader(modules, timeout)
        self.preloader.begin(command, dict(os.environ))

    def run(self, count=1, envs=None, **options):
        """Start workers; return the processes."""
        self.preloader.wait()
        envs = envs or {rank: {**os.environ, "RANK": str(rank)} for rank in range(count)}
        self.preloader.prepare(envs)
        streams = {"stdout": None, "stderr": None, **options}
        return [
            self.preloader.start(rank, self.command, env=env, **streams)
            for rank, env in envs.items()
        ]

    def output(self, **options):
        """Return the stdout of one worker."""
        read, write = os.pipe()
        with open(read, "rb") as reader:
            try:
                (worker,) = self.run(stdout=write, **options)
            finally:
                os.close(write)
            assert worker is not None
            text = reader.read().decode()
        assert worker.wait(30) == 0
        return text


def fresh_output(command, env, **options):
    """Return the stdout of an executed worker."""
    return subprocess.run(
        command, env=env, stdout=subprocess.PIPE, check=True, start_new_session=True, **options
    ).stdout.decode()
