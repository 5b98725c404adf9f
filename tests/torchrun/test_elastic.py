"""Packages of `torch.distributed.elastic`; tests/docs/test_compatibility.py has all their names."""

from __future__ import annotations

import importlib

import plaunch_logs_default
import pytest
from plaunch_torchrun.elastic import multiprocessing

from helpers.programs import run_python

torch = pytest.importorskip("torch")

ROOMS = ("agent", "events", "metrics", "multiprocessing", "rendezvous", "timer", "utils")


@pytest.mark.parametrize("room", ROOMS)
def test_a_package_has_all_names_of_torchs(room):
    """Including names that torch's package imports from its modules."""
    of_torch = importlib.import_module(f"torch.distributed.elastic.{room}")
    of_plaunch = importlib.import_module(f"plaunch_torchrun.elastic.{room}")
    offered = {
        name
        for name, thing in vars(of_torch).items()
        if not name.startswith("_")
        and str(getattr(thing, "__module__", "")).startswith(f"{of_torch.__name__}.")
    }
    assert {name for name in offered if not hasattr(of_plaunch, name)} == set()


def test_the_default_logs_spec_is_the_plugins():
    assert multiprocessing.DefaultLogsSpecs is plaunch_logs_default.DefaultLogsSpecs


def test_a_name_that_does_not_exist():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = multiprocessing.no_such_name


def test_torch_is_not_imported():
    modules = " ".join(f"plaunch_torchrun.elastic.{room}," for room in ROOMS)
    code = f"import {modules} plaunch_torchrun.run, sys; print('torch' in sys.modules)"
    done = run_python("-c", code, check=True)
    assert done.stdout == "False\n"
