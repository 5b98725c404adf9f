"""Real stores forget past rounds."""

from __future__ import annotations

import contextlib

import pytest
from plaunch.rendezvous import JobFailure, JobSettings, RendezvousParameters
from plaunch.testing.conformance.nodes import eventually
from plaunch_rendezvous_c10d import create_c10d_handler


@pytest.mark.parametrize("store_type", ["tcp", "file"])
def test_only_the_last_two_rounds_are_kept(tmp_path, store_type):
    endpoint = str(tmp_path / "store") if store_type == "file" else "127.0.0.1:0"
    params = RendezvousParameters(
        "c10d",
        endpoint,
        "job",
        1,
        1,
        job=JobSettings(max_restarts=9),
        keep_alive_interval="0.1",
        store_type=store_type,
    )
    handler = create_c10d_handler(params)
    with contextlib.ExitStack() as stack:
        stack.callback(handler.leave)
        for _ in range(4):
            handler.next_rendezvous()
            handler.report_failure([JobFailure(0, 1.0, "it failed")])
        assert handler.next_rendezvous().round == 4
        keys = handler._membership.keys
        store = stack.enter_context(contextlib.closing(handler._threads.connect()))
        past = [key for r in range(3) for key in (f"{keys.joined(r)}/1", keys.slot(r, 0, 1))]
        eventually(lambda: not any(store.multi_get(past)), "past rounds are deleted")
        assert all(store.multi_get([keys.slot(r, 0, 1) for r in (3, 4)]))
