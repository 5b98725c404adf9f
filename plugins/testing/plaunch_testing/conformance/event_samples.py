"""Sample events: one with every known name, and some with odd metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.events import Event, EventSource
from plaunch_events import COMMON_KEYS, SCHEMA

if TYPE_CHECKING:
    from plaunch.events import EventMetadataValue

# Sample values by key; other keys have a text.
_VALUES: dict[str, EventMetadataValue] = {
    "run_id": "conformance",
    "attempt": 0,
    "round": 1,
    "host": "node0",
    "role": "default",
    "agent_pid": 4242,
    "group_rank": 0,
    "ranks": "0-1",
    "min_nodes": 1,
    "max_nodes": 4,
    "local_world_size": 2,
    "max_restarts": 3,
    "duration": 2.1,
    "group_world_size": 1,
    "world_size": 2,
    "master_addr": "node0",
    "master_port": 29500,
    "local_rank": 1,
    "global_rank": 1,
    "role_rank": 1,
    "role_world_size": 2,
    "worker_pid": 4243,
    "exit_code": -9,
    "signal_name": "SIGKILL",
    "stopped": False,
    "lifetime": 12.5,
    "elapsed": 14.6,
    "is_first": True,
    "last_lines": "one\ntwo\n",
    "cause": "failure",
    "kind": "arrived",
    "signum": 15,
    "action": "stop",
    "step": "signalled",
    "seconds": 0.0,
    "old": "HEALTHY",
    "new": "STOPPED",
    "outcome": "signalled",
    "seconds_total": 30.0,
    "seconds_noticing": 0.5,
    "seconds_waiting": 2.0,
    "seconds_starting": 1.0,
    "seconds_training": 25.0,
    "seconds_stopping": 1.0,
    "seconds_lost": 1.0,
    "seconds_preloading": 0.5,
    "modules": "torch,numpy",
    "forked": True,
}
# torchrun's events, recorded by programs written for it.
_TORCHRUN = {
    f"torchelastic.worker.status.{state}": source
    for state, source in (
        ("RENDEZVOUS", EventSource.AGENT),
        ("START", EventSource.WORKER),
        ("SUCCEEDED", EventSource.WORKER),
        ("FAILED", EventSource.WORKER),
        ("TERMINATED", EventSource.WORKER),
    )
}
_OF_TORCHRUN: dict[str, EventMetadataValue] = {
    "run_id": "conformance",
    "global_rank": 1,
    "group_rank": 0,
    "worker_id": "4243",
    "role": "default",
    "hostname": "node0",
    "total_run_time": 14.6,
    "rdzv_backend": "static",
    "raw_error": None,
    "metadata": '{"group_world_size": 1, "entry_point": "train.py", "local_rank": [1]}',
    "agent_restarts": 0,
    "duration_ms": None,
}
NAMES = (*SCHEMA, *_TORCHRUN)

_COMMON = {key: _VALUES.get(key, "some text") for key in COMMON_KEYS}
ODD: dict[str, dict[str, EventMetadataValue]] = {
    "no metadata at all": {},
    "values that are None": dict.fromkeys(
        (*COMMON_KEYS, *SCHEMA["plaunch.worker.exited"].keys), None
    ),
    "text of other alphabets": {
        **_COMMON,
        "message": "Gr\u00f6\u00dfe \u5927\u5c0f \U0001f525 \u2028",
    },
    "text that is not UTF-8": {**_COMMON, "message": "a \udcff b"},
    "several lines": {**_COMMON, "message": 'line\nline\r\n\ttab "quoted" \\ {brace} %s'},
    "control characters": {**_COMMON, "message": "\x00\x1b[31mred\x1b[0m\x7f"},
    "long text": {**_COMMON, "message": "x" * (1 << 20)},
    "numbers without bounds": {**_COMMON, "duration": float("inf"), "exit_code": 1 << 80},
    "no number": {**_COMMON, "duration": float("nan")},
    "unknown keys": {**_COMMON, "a new key": True, "": 0},
}


def named(name: str) -> Event:
    """Return an event with this name as in a launch; an unknown one has the common metadata."""
    if name in _TORCHRUN:
        state = name.rpartition(".")[2]
        return Event(name=name, source=_TORCHRUN[name], metadata={**_OF_TORCHRUN, "state": state})
    if name not in SCHEMA:
        return Event(name=name, source=EventSource.AGENT, metadata=dict(_COMMON))
    keys = (*COMMON_KEYS, *SCHEMA[name].keys)
    metadata = {key: _VALUES.get(key, "some text") for key in keys}
    return Event(name=name, source=SCHEMA[name].source, metadata=metadata)


def odd(what: str, name: str = "plaunch.worker.exited") -> Event:
    """Return an event with odd metadata; `what` is a key of `ODD`."""
    return Event(name=name, source=EventSource.WORKER, metadata=ODD[what])
