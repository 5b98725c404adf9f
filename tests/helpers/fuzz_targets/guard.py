"""Lines to the guard, among which a worker may have written by mistake."""

from __future__ import annotations

import os

from plaunch.process.stopping.guard_process import GuardState

from helpers.fuzz_targets import Finding
from helpers.fuzz_targets.reading import check_equal, divide

WORDS = (b"job ", b"process ", b" 1 2 3\n", b" - ", b" 0 ", b"-1", b"2f746d70\n", b"1_0")
MAX_LENGTH = 512
_MOST_KEPT = 5000  # bytes of a line without an end
_PIPE = 32_768  # bytes that a pipe holds in any case


def check(data):
    """Let a guard receive lines, divided anywhere; it kills processes of valid lines only."""
    parts = [*divide(data)]
    states = [_receive(one) for one in parts]
    for state in states[1:]:
        check_equal(state, states[0], "other parts, other processes")
    _, leaders, folder = states[0]
    for rank, pid, start in leaders:
        if pid < 2 or start < 0:
            raise Finding(f"the guard would kill process {pid} of rank {rank} from {start}")
    if "\0" in folder:
        raise Finding(f"a folder {folder!r}")


def _receive(parts):
    """Return the job, the processes and the folder that a guard knows after these parts."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    state = GuardState(read, proc="/proc")
    try:
        for part in parts:
            os.write(write, part[:_PIPE])
            state.receive()
            if len(state._rest) > _MOST_KEPT:
                raise Finding(f"the guard keeps {len(state._rest)} bytes")
        os.close(write)
        state.receive()
        if not state.is_over:
            raise Finding("the guard does not notice the end")
    finally:
        os.close(read)
    if state.tree is None:
        return None, [], state.folder
    known = [(rank, pid, start) for (pid, start), rank in state.tree._known.items()]
    return True, sorted(known), state.folder
