"""A plugin for the agents of jobs with faults: it notes what only an agent knows.

It appends to the file `records` of its folder: the incarnation of each round, hangs that it has
reported because a file wants that, and at the end the verdict and what is left. `PLAUNCH_TEST_BUG`
names a bug that it puts into the agent.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import threading
import time

import plaunch
from plaunch.agent import Extension
from plaunch_membership import DynamicRendezvousHandler

FOLDER = os.getcwd()
PATIENCE = 1.0  # seconds for threads to end
LOOK = 0.1  # seconds
# Those that bound the time of exit functions, and read what the command of an agent says.
EXPECTED = ("MainThread", "plaunch-end", "plaunch-connection")

_handlers: list[DynamicRendezvousHandler] = []


def note(event: str, **facts: object) -> None:
    line = {"agent": os.getpid(), "event": event, "at": time.time(), **facts}
    fd = os.open(f"{FOLDER}/records", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, json.dumps(line).encode() + b"\n")
    finally:
        os.close(fd)


class RecordedExtension(Extension):
    """Reports a hang when a file wants it."""

    takes_events = False

    def start(self, control):
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(control,), daemon=True)
        self._thread.start()

    def stop(self, result):
        self._is_over.set()
        self._thread.join(PATIENCE)

    def _run(self, control):
        path = f"{FOLDER}/hang.{os.getpid()}"
        while not self._is_over.wait(LOOK):
            if not os.path.exists(path):
                continue
            os.unlink(path)
            ranks = sorted(control.snapshot().pids)
            if ranks:
                shot = control.snapshot()
                note("hang", rank=ranks[0], round=shot.round, attempt=shot.attempt)
                control.report_hang(ranks[0], "a test says so")


@plaunch.hookimpl
def plaunch_extensions(context):
    return [RecordedExtension()]


@plaunch.hookimpl
def plaunch_after_rendezvous(group):
    note("round", round=group.round, attempt=group.attempt, incarnation=_incarnation())


def _incarnation() -> str | None:
    return _handlers[-1].membership.keys.incarnation if _handlers else None


def _note_end() -> None:
    facts: dict[str, object] = {}
    handler = _handlers[-1] if _handlers else None
    if handler is not None:
        state, verdict = handler.membership.state, handler.verdict
        if state is not None:
            facts |= {"incarnation": _incarnation(), "round": state.round}
        if verdict is not None:
            found = None if verdict.first is None else verdict.failures.get(verdict.first)
            facts["verdict"] = [
                verdict.outcome.value, verdict.reason, verdict.no_restart, verdict.node,
                verdict.first,
            ]  # fmt: skip
            if found is not None:
                facts["first"] = [
                    found.global_rank, found.exitcode, found.began, found.is_consequence,
                ]  # fmt: skip
    until = time.monotonic() + PATIENCE
    while (left := _threads()) and time.monotonic() < until:
        time.sleep(0.01)
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    note("end", threads=left, sockets=_sockets(), load=load, **facts)


def _threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name not in EXPECTED]


def _sockets() -> list[str]:
    """Describe the descriptors that are sockets."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as copy:
                found.append(f"a socket of {copy.getsockname()!r} to {_peer_of(copy)}")
        except OSError:  # it is not a socket, or that of the folder itself
            pass
    return found


def _peer_of(one: socket.socket) -> str:
    try:
        return repr(one.getpeername())
    except OSError:
        return "nobody"


def _record_handlers() -> None:
    original = DynamicRendezvousHandler.__init__

    def create(self, *args, **kwargs):
        original(self, *args, **kwargs)
        _handlers.append(self)

    DynamicRendezvousHandler.__init__ = create


def _plant_bug(what: str) -> None:
    from helpers.simulated_bugs import BUGS

    [bug] = (bug for bug in BUGS if bug.what == what)
    planted = bug.planted()
    planted.__enter__()
    _planted.append(planted)


_planted: list[object] = []  # until the end of the process
_record_handlers()
if "PLAUNCH_TEST_BUG" in os.environ:
    _plant_bug(os.environ["PLAUNCH_TEST_BUG"])
atexit.register(_note_end)
