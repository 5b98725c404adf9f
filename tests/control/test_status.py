"""The lines of `plaunchctl status` about workers and extensions."""

from __future__ import annotations

import pytest
from plaunch.agent import Progress
from plaunch.texts import printable
from plaunch_control.client import ask
from plaunch_control.commands import describe_status

from helpers.pretended_launches import PretendedLaunch


@pytest.mark.parametrize(
    ("progress", "said"),
    [
        ({}, ""),
        ({4: Progress(7, None, 0.0)}, ", step 7"),
        ({4: Progress(7, 20, 0.0)}, ", step 7 of 20"),
        ({4: Progress(8, 20, 0.5)}, ", step 8 of 20, 0.5 a second, 24 s left"),
    ],
)
def test_progress_of_workers(runtime_dir, monkeypatch, progress, said):
    with PretendedLaunch(runtime_dir, monkeypatch) as launch:
        launch.control.tell(
            "worker.started", local_rank=0, global_rank=4, worker_pid=70, round=0, attempt=0
        )
        launch.control.set(progress=progress)
        (line,) = [
            line for line in describe_status(ask(launch.path, "/v1/status")) if "rank 4" in line
        ]
    assert line == f"  rank 4    pid 70       running{said}"


def test_notes_of_extensions(runtime_dir, monkeypatch):
    with PretendedLaunch(runtime_dir, monkeypatch) as launch:
        launch.control.set(notes={"checkpoints": "2 wait for their upload", "cache": "\x1b[2J"})
        data = ask(launch.path, "/v1/status")
    assert data["notes"]["checkpoints"] == "2 wait for their upload"
    lines = [printable(line) for line in describe_status(data)]
    assert "checkpoints 2 wait for their upload" in lines
    assert r"cache      \x1b[2J" in lines
