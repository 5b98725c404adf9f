"""USE_LIBUV selects the host of the workers' store."""

from __future__ import annotations

import pytest
from plaunch.cli import parse
from plaunch.plugin import PluginManager
from plaunch_worker_store.filling import fill_in

MANAGER = PluginManager.create(environ={}, first_party_only=True)


def filled(words, **environ):
    args = parse([*words, "train.py"], {})
    return fill_in(args, MANAGER, environ), args.worker_store, args.is_given("worker_store")


def test_without_libuv_the_worker_of_rank_0_hosts_it():
    line, who, is_given = filled([], USE_LIBUV="0")
    assert (who, is_given) == ("rank0", True)
    assert line == "USE_LIBUV=0: the worker of rank 0 hosts the workers' store"


@pytest.mark.parametrize(
    ("words", "environ", "who"),
    [
        ([], {}, "agent"),
        ([], {"USE_LIBUV": "1"}, "agent"),
        (["--worker-store=agent"], {"USE_LIBUV": "0"}, "agent"),
    ],
)
def test_otherwise_the_option_decides(words, environ, who):
    assert filled(words, **environ)[:2] == ("", who)
