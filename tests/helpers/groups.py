"""Worker groups as passed to plugins and recorders."""

from __future__ import annotations

from plaunch.agent import GroupInfo, WorkerState


def make_group(**changes: object) -> GroupInfo:
    """Return the group of one node that runs its first round, with `changes`."""
    values = {
        "run_id": "job",
        "role": "trainer",
        "state": WorkerState.HEALTHY,
        "attempt": 0,
        "round": 0,
        "max_restarts": 3,
        "group_rank": 0,
        "group_world_size": 1,
        "master_addr": "127.0.0.1",
        "master_port": 29500,
        "workers": (),
    }
    return GroupInfo(**{**values, **changes})
