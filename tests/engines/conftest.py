"""Fixtures for jobs on the nodes of engines."""

from __future__ import annotations

import pytest
from plaunch_engines.output import MergedOutput

from helpers.engine_commands import EngineCommand
from helpers.nodes import WORKER
from helpers.waiting import wait_until


@pytest.fixture(autouse=True)
def ended_outputs(monkeypatch):
    """End the thread of each output that a test has made, once its pipes are closed."""
    outputs = []
    init = MergedOutput.__init__

    def recorded(self, *words, **settings):
        init(self, *words, **settings)
        outputs.append(self)

    monkeypatch.setattr(MergedOutput, "__init__", recorded)
    yield
    for output in outputs:
        output.request_end()
        wait_until(output.is_written, "the end of an output's thread")


@pytest.fixture
def job_folder(tmp_path):
    """A folder whose name a shell would split, with `worker.py`."""
    folder = tmp_path / "it's a $job"
    folder.mkdir()
    (folder / "worker.py").write_text(WORKER)
    return folder


@pytest.fixture
def launch(job_folder):
    """Start commands in the folder; nothing of them is left after the test."""
    commands = []

    def launch(*words, by=EngineCommand, **more):
        commands.append(by(job_folder, *words, **more))
        return commands[-1]

    launch.folder = job_folder
    yield launch
    for command in commands:
        command.end_now()
