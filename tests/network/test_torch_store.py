"""torch's TCPStore of a torch with libuv, and of one without."""

from __future__ import annotations

import pytest
from plaunch_network import create_tcp_store


def create(calls, problem=""):
    def tcp_store(**options):
        calls.append(options)
        if problem and options.get("use_libuv", True):
            raise RuntimeError(problem)
        return "store"

    return tcp_store


def test_the_default_server_is_used():
    calls = []
    assert create_tcp_store(create(calls), port=7) == "store"
    assert calls == [{"port": 7}]


@pytest.mark.parametrize("verb", ["built", "build"])  # from torch 2.7 on, and before
def test_a_torch_without_libuv_uses_its_other_server(verb):
    calls = []
    problem = f"use_libuv was requested but PyTorch was {verb} without libuv support"
    assert create_tcp_store(create(calls, problem), port=7, is_master=False) == "store"
    assert calls[1] == {"port": 7, "is_master": False, "use_libuv": False}


def test_other_errors_are_raised():
    with pytest.raises(RuntimeError, match="EADDRINUSE"):
        create_tcp_store(create([], "EADDRINUSE"), port=7)
