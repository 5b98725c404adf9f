"""The page with the stacks of all workers."""

from __future__ import annotations

import pytest
from plaunch.agent import Snapshot, WorkerState
from plaunch.plugin import PluginContext
from plaunch_control.answers import ControlService
from plaunch_control.requests import HttpRequest
from plaunch_hang.stacks import JobView, StackFrame, StackGroup

from helpers.pretended_launches import PretendedLaunch

LOADS = StackGroup({"b": (2,)}, (StackFrame("load_batch", "/job/train.py", 6),))
STEPS = StackGroup({"a": (0, 1), "b": (3,)}, (StackFrame("step", "/job/train.py", 9),))
FOLDERS = (("a", "/logs/a"), ("b", "/logs/b"))


class Control:
    """The control of a launch on the first of several nodes."""

    def take_events(self):
        return []

    def snapshot(self):
        return Snapshot(WorkerState.HEALTHY, 0, 0, (0, 1), {0: 100, 1: 101})


@pytest.fixture
def page():
    def page(view, **given):
        service = ControlService(PluginContext("job", "trainer", "a"), Control(), 1000, 0.0)

        def ask():
            if isinstance(view, Exception):
                raise view
            return view

        service.stacks_page.stacks.ask = ask
        return service.answer(HttpRequest("GET", "/v1/stacks", given), 0)

    return page


def test_groups_and_folders(page):
    answer = page(JobView([LOADS, STEPS], FOLDERS))
    data = answer.data
    assert answer.status == 200
    assert data["lines"] == [
        "1 rank: 2 (b) load_batch (train.py:6)",
        "3 ranks: 0-1, 3 step (train.py:9)",
    ]
    assert data["groups"][1] == {
        "ranks": "0-1,3",
        "hosts": {"a": "0-1", "b": "3"},
        "frames": [{"function": "step", "file": "/job/train.py", "line": 9}],
        "state": "",
        "reason": "",
        "child": [],
        "held": "",
        "child_kind": None,
    }
    assert data["folders"] == [
        {"host": "a", "folder": "/logs/a"},
        {"host": "b", "folder": "/logs/b"},
    ]
    assert data["notes"] == []


def test_some_ranks(page):
    data = page(JobView([LOADS, STEPS]), ranks="1-2").data
    assert [group["ranks"] for group in data["groups"]] == ["1", "2"]


@pytest.mark.parametrize(
    ("view", "note"),
    [
        (
            JobView([STEPS], FOLDERS, silent=("c",)),
            "c has not answered within 3 s",
        ),
        (
            JobView([STEPS], FOLDERS, silent=("c", "d")),
            "c, d have not answered within 3 s",
        ),
        (
            JobView([STEPS], FOLDERS, has_store=False),
            "the store of the job did not answer: these are the workers of this node",
        ),
        (
            JobView([STEPS], FOLDERS, is_job_wide=False),
            "the nodes of this job do not know each other: these are the workers of this node",
        ),
        (
            JobView([STEPS], problems=(("a", "disk full"),)),
            "whole stacks of a are not kept: disk full",
        ),
        (JobView([STEPS]), "whole stacks are kept with --log-dir"),
    ],
)
def test_missing_information_is_reported(page, view, note):
    answer = page(view)
    assert (answer.data["notes"], answer.status) == ([note], 200)


def test_a_node_without_requests_answers_other_nodes(runtime_dir, monkeypatch):
    with PretendedLaunch(runtime_dir, monkeypatch) as launch:
        launch.control.set(pids={})
        launch.control.listeners["stacks"]("call")
    ((name, text),) = launch.control.shown
    assert name == "stacks"
    assert '"calls": ["call"]' in text


@pytest.mark.parametrize(
    ("view", "given", "status", "error"),
    [
        (JobView([]), {}, 409, "no worker runs now"),
        (JobView([], is_job_wide=False), {}, 409, "no worker runs on this node now"),
        (JobView([LOADS]), {"ranks": "7"}, 409, "none of them runs"),
        (JobView([LOADS], is_job_wide=False), {"ranks": "7"}, 409, "none of them runs on this"),
        (JobView([LOADS]), {"ranks": "x"}, 400, "'x' is not a list of ranks"),
        (TimeoutError("it takes too long"), {}, 503, "it takes too long"),
    ],
)
def test_requests_without_stacks_are_refused(page, view, given, status, error):
    answer = page(view, **given)
    assert answer.status == status
    assert answer.data["error"].startswith(error)
