"""A real etcd forgets past rounds."""

from __future__ import annotations

import contextlib

from plaunch.rendezvous import JobFailure, JobSettings
from plaunch.testing.conformance.nodes import eventually
from plaunch_rendezvous_etcd import create_etcd_handler


def test_only_the_last_two_rounds_are_kept(params_of, etcd_server):
    params = params_of(etcd_server.endpoint, keep_alive_interval=0.25)
    params.job = JobSettings(max_restarts=9)
    handler = create_etcd_handler(params)
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
