"""Exceptions that are instances of plaunch's and torch's classes."""

from __future__ import annotations

import pickle
import signal

import pytest
from plaunch.errors import (
    PluginError,
    RendezvousClosedError,
    RendezvousError,
    RendezvousTimeoutError,
    SignalException,
)
from plaunch.process import ChildFailedError, ProcessFailure
from plaunch_torchrun.exceptions import HOMES, add_torch_type, torch_typed

from helpers.programs import run_python


def torch_class(name):
    module = pytest.importorskip(HOMES[name])
    return getattr(module, name)


def failed():
    return ChildFailedError("train.py", {0: ProcessFailure(0, 1, 7, "")}, stopped={1: -15})


@pytest.mark.parametrize(
    ("error", "bases"),
    [
        (failed(), ["ChildFailedError"]),
        (SignalException("stopped", signal.SIGTERM), ["SignalException"]),
        (RendezvousError("no"), ["RendezvousError"]),
        (RendezvousClosedError("no"), ["RendezvousClosedError", "RendezvousError"]),
        (RendezvousTimeoutError("no"), ["RendezvousTimeoutError", "RendezvousError"]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_exception_of_both_kinds(error, bases):
    of_torch = [torch_class(name) for name in bases]
    of_plaunch, text = type(error), str(error)
    with pytest.raises(of_plaunch) as raised, torch_typed():
        raise error
    assert raised.value is error
    assert str(error) == text
    assert type(error).__name__ == of_plaunch.__name__
    for base in of_torch:
        assert isinstance(error, base)
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is of_plaunch
    assert isinstance(error, of_torch[0])
    assert str(back) == text


def test_it_is_done_once():
    error = RendezvousClosedError("no")
    torch_class("RendezvousClosedError")
    add_torch_type(error)
    both = type(error)
    add_torch_type(error)
    assert type(error) is both


def test_a_subclass_of_a_third_party():
    class MineError(RendezvousTimeoutError):
        pass

    of_torch = torch_class("RendezvousTimeoutError")
    error = MineError("no")
    add_torch_type(error)
    assert isinstance(error, MineError)
    assert isinstance(error, of_torch)


def test_an_exception_without_a_class_in_torch():
    error = PluginError("no")
    add_torch_type(error)
    assert type(error) is PluginError


def test_attributes_are_kept():
    of_torch = torch_class("ChildFailedError")
    error = failed()
    add_torch_type(error)
    assert isinstance(error, of_torch)
    assert error.get_first_failure()[1].exitcode == error.exit_code == 7
    assert error.stopped == {1: -15}


def test_without_torch_nothing_of_it_is_imported():
    code = (
        "import sys\n"
        "import plaunch_torchrun.run\n"
        "from plaunch_torchrun.exceptions import torch_typed\n"
        "from plaunch.errors import RendezvousError\n"
        "try:\n"
        "    with torch_typed(): raise RendezvousError('no')\n"
        "except RendezvousError as error: print(type(error) is RendezvousError)\n"
        "print('torch' in sys.modules)"
    )
    done = run_python("-c", code, check=True)
    assert done.stdout.split() == ["True", "False"]
