from __future__ import annotations

import os
import sys

import pytest
from plaunch.plugin import PluginContext
from plaunch_example_plugins.wrapper import plaunch_worker_starter

CONTEXT = PluginContext(run_id="job", role="default", host="alpha")


def test_workers_are_started_by_the_program(monkeypatch):
    monkeypatch.setenv("WORKER_WRAPPER", "env 'WRAPPED=by us'")
    starter = plaunch_worker_starter(CONTEXT)
    assert str(starter) == "env 'WRAPPED=by us' ..."
    code = "import os, sys; sys.exit(os.environ['WRAPPED'] != 'by us')"
    command = [sys.executable, "-c", code]
    worker = starter.start(0, command, env=dict(os.environ), stdout=None, stderr=None)
    assert worker.wait(60) == 0


@pytest.mark.parametrize("value", [None, "", " "])
def test_without_a_program_plaunch_starts_them(monkeypatch, value):
    monkeypatch.delenv("WORKER_WRAPPER", raising=False)
    if value is not None:
        monkeypatch.setenv("WORKER_WRAPPER", value)
    assert plaunch_worker_starter(CONTEXT) is None
