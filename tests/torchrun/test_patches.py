"""What a program has replaced in torch's modules."""

from __future__ import annotations

import functools
import importlib
import logging
from types import ModuleType
from unittest.mock import Mock

import pytest

pytest.importorskip("torch.distributed.launcher.api")
from plaunch_torchrun import patches

UNUSED = [name for name in patches._UNUSED if name not in patches.EFFECTIVE]
PROCESSES = importlib.import_module("torch.distributed.elastic.multiprocessing.api")
AGENT = importlib.import_module("torch.distributed.elastic.agent.server.local_elastic_agent")


@pytest.mark.parametrize("name", UNUSED)
def test_nothing_is_replaced_in_torchs_modules(name):
    assert [*patches.replaced_names(importlib.import_module(name))] == []


def mine(*args, **kwargs):
    return None


@pytest.mark.parametrize(
    "value",
    [mine, functools.wraps(PROCESSES._wrap)(mine), Mock(), type("Mine", (PROCESSES.TailLog,), {})],
    ids=["function", "wrapper", "mock", "class"],
)
def test_a_replaced_name(value, monkeypatch):
    monkeypatch.setattr(PROCESSES, "TailLog", value)
    assert [*patches.replaced_names(PROCESSES)] == ["TailLog"]


@pytest.mark.parametrize("value", [mine, staticmethod(mine), property(mine)])
def test_a_replaced_method(value, monkeypatch):
    monkeypatch.setattr(AGENT.LocalElasticAgent, "_start_workers", value)
    assert [*patches.replaced_names(AGENT)] == ["LocalElasticAgent._start_workers"]


def test_a_warning_comes_once(monkeypatch, caplog):
    monkeypatch.setattr(PROCESSES, "TailLog", mine)
    reported = set()
    with caplog.at_level(logging.WARNING, "plaunch"):
        patches.warn_of_unused(reported)
        patches.warn_of_unused(reported)
    (record,) = caplog.records
    assert f"has replaced {PROCESSES.__name__}.TailLog, which plaunch" in record.getMessage()


def test_the_function_that_starts_programs(monkeypatch):
    assert patches.find_subprocess_handler() is None
    original = PROCESSES.get_subprocess_handler
    for value in (mine, functools.wraps(original)(mine), functools.partial(original), Mock()):
        monkeypatch.setattr(PROCESSES, "get_subprocess_handler", value)
        assert patches.find_subprocess_handler() is value
        assert [*patches.replaced_names(PROCESSES)] == [], "it has an effect"


def test_a_decorator_of_torch_does_not_hide_a_function():
    record = importlib.import_module("torch.distributed.elastic.multiprocessing.errors").record
    assert not patches.is_torchs(record(mine))
    assert patches.is_torchs(importlib.import_module("torch.distributed.run").main)


def test_modules_and_names_of_the_program_are_not_reported(monkeypatch):
    monkeypatch.setattr(PROCESSES, "added", ModuleType("added"), raising=False)
    assert [*patches.replaced_names(PROCESSES)] == []
