"""A process whose handler was not shut down exits with its own code, and does not abort."""

from __future__ import annotations

import json

import pytest

from helpers.programs import run_python

pytest.importorskip("torch.distributed")

# Each case exits a process of its own.
PROGRAM = """
import json, os, sys
store = sys.argv[1]
import torch.distributed
from plaunch.errors import RendezvousClosedError
from plaunch.rendezvous import RendezvousParameters
from plaunch_rendezvous_c10d import create_c10d_handler

def joined(endpoint="localhost:0", **options):
    params = RendezvousParameters("c10d", endpoint, "job", 1, 1, **{"store": store, **options})
    handler = create_c10d_handler(params)
    handler.next_rendezvous()
    return handler

def ends_with_a_code():
    joined()
    sys.exit(3)

def ends_after_the_job_was_closed():
    handler = joined()
    handler.set_closed()
    try:
        handler.next_rendezvous()
    except RendezvousClosedError:
        return

def ends_without_the_handler():
    handler = joined()
    del handler

def ends_while_it_connects():
    import socket, threading
    with socket.create_server(("127.0.0.1", 0)) as mute:  # accepts connections and never answers
        endpoint = f"127.0.0.1:{mute.getsockname()[1]}"
        params = RendezvousParameters("c10d", endpoint, "job", 1, 1, is_host=False, store=store)
        call = create_c10d_handler(params).next_rendezvous
        threading.Thread(target=call, daemon=True).start()
        for _ in range(2):
            mute.accept()

cases = (
    ends_with_a_code, ends_after_the_job_was_closed, ends_without_the_handler,
    ends_while_it_connects,
)
pids = {}
for case in cases:
    pids[case.__name__] = pid = os.fork()
    if pid == 0:
        case()
        sys.exit()
codes = {name: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for name, pid in pids.items()}
print(json.dumps(codes))
"""


@pytest.mark.parametrize("store", ["job", "torch"])
def test_a_process_that_exits_without_a_shutdown_does_not_abort(store):
    done = run_python("-Wignore", "-c", PROGRAM, store, check=True)
    assert json.loads(done.stdout) == {
        "ends_with_a_code": 3,
        "ends_after_the_job_was_closed": 0,
        "ends_without_the_handler": 0,
        "ends_while_it_connects": 0,
    }
    assert "terminate called" not in done.stderr
