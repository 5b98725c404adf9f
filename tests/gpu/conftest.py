"""Launches on the GPU of this machine; without one, every test here is skipped with the reason."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.programs import end_launch
from helpers.waiting import wait_for_files, wait_until

from .device import find_gpu

PROGRAMS = Path(__file__).parent / "programs"
TIMEOUT = 80.0  # seconds; CUDA and NCCL take their time at the first use


class Launches:
    """Runs `python -m plaunch` with the programs of this folder, in a temporary folder."""

    def __init__(self, folder):
        self.folder = folder
        self.environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PET_", "PLAUNCH_", "TORCHELASTIC_", "TORCH_", "LOGLEVEL"))
        }

    @contextlib.contextmanager
    def start(self, *words, **environ):
        """Start a launch of one of the programs of this folder; it is ended after the block."""
        found = [PROGRAMS / word if word.endswith(".py") else word for word in words]
        command = [sys.executable, "-m", "plaunch", *map(str, found)]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        env = {**self.environ, **environ}
        process = subprocess.Popen(command, cwd=self.folder, env=env, text=True, **pipes)
        try:
            yield process
        finally:
            end_launch(process)
            process.stdout.close()
            process.stderr.close()

    def run(self, *words, **environ):
        """Run a launch to its end."""
        with self.start(*words, **environ) as process:
            out, err = process.communicate(timeout=TIMEOUT)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def said(self, name):
        """What a worker has written into the file `name`; waits for it."""
        path = self.folder / name
        wait_for_files(path)
        return json.loads(path.read_text())

    def wait_for(self, process, name):
        """The same, while the launch runs; its messages are shown if it ends before."""
        path = self.folder / name
        wait_until(lambda: path.exists() or process.poll() is not None, f"the file {name}")
        assert path.exists(), process.communicate(timeout=TIMEOUT)
        return self.said(name)


@pytest.fixture(scope="session")
def found_gpu():
    """The GPU, or why there is none; looked for once."""
    return find_gpu()


@pytest.fixture(autouse=True)
def _needs_gpu(request):
    """Skip what is marked `gpu`, where there is none."""
    if request.node.get_closest_marker("gpu"):
        request.getfixturevalue("gpu")


@pytest.fixture
def gpu(found_gpu):
    """The GPU of this machine."""
    if isinstance(found_gpu, str):
        pytest.skip(found_gpu)
    return found_gpu


@pytest.fixture
def real_gpu(gpu):
    """The same, which nothing stands in for."""
    if not gpu.is_real:
        pytest.skip("needs a real GPU")
    return gpu


@pytest.fixture
def plaunch(tmp_path):
    """Run launches in a temporary folder."""
    return Launches(tmp_path)


@pytest.fixture
def measured(record_property):
    """Put a figure on the page docs/gpu.md."""
    return lambda text: record_property("figure", text)
