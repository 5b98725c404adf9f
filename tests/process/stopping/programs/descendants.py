"""Workers that start processes of every kind and then end in every way; a program and a function.

    descendants.py FOLDER KIND,KIND,... END

Every process writes a file `<kind>-<pid>` with its start time, so that a test knows it even when
its number is given away again.
"""

from __future__ import annotations

import os
import signal
import sys

ORPHANS = ("daemon", "execd", "closed", "lost")
SESSIONS = ("session", "cleared", *ORPHANS)
PROGRAMS = ("execd", "closed", "cleared", "lost")


def note(folder, kind):
    with open("/proc/self/stat", "rb") as stat:
        start = stat.read().rpartition(b")")[2].split()[19]
    path = os.path.join(folder, f".{kind}-{os.getpid()}")
    with open(path, "wb") as file:
        file.write(start)
    os.rename(path, os.path.join(folder, f"{kind}-{os.getpid()}"))


def alive(folder):
    """Those that have made themselves known and neither are gone nor zombies."""
    from plaunch.process.proc import read_process

    found = []
    for name in os.listdir(folder):
        pid = name.rpartition("-")[2]
        with open(os.path.join(folder, name)) as file:
            start = int(file.read())
        process = read_process(int(pid))
        if process is not None and process.is_alive and process.start == start:
            found.append(name)
    return found


def start(folder, kind):
    """Start one process of a kind, in the manner of programs that fork by themselves."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _become(folder, kind, writer)
        finally:
            os._exit(1)
    os.close(writer)
    if kind in ORPHANS:
        os.waitpid(pid, 0)
    if not os.read(reader, 1):
        raise RuntimeError(f"{kind} has ended before it was noted")
    os.close(reader)


def _become(folder, kind, writer):
    if kind in SESSIONS:
        os.setsid()
    if kind in ORPHANS and os.fork():
        os._exit(0)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN if kind == "stubborn" else signal.SIG_DFL)
    note(folder, kind)
    os.write(writer, b"x")
    os.close(writer)
    if kind == "closed":
        os.closerange(0, 256)
    if kind in PROGRAMS:
        env = {} if kind in ("cleared", "lost") else os.environ
        os.execve("/bin/sleep", ["sleep", "600"], env)
    while True:
        signal.pause()


def work(folder, kinds, end):
    """Start all kinds, then end: return, fail, crash, vanish; or wait, maybe ignoring SIGTERM."""
    if end == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if end == "closing":
        os.closerange(3, 256)  # as a daemon does; the worker's own files are among them
    for kind in kinds:
        start(folder, kind)
    note(folder, "worker")
    if end == "fail":
        sys.exit(3)
    if end == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if end == "vanish":
        os._exit(4)
    while end in ("wait", "stubborn", "closing"):
        signal.pause()


if __name__ == "__main__":
    folder, kinds, end = sys.argv[1:]
    if not (end == "wait-in-round-0" and os.environ["PLAUNCH_ROUND"] != "0"):
        work(folder, [kind for kind in kinds.split(",") if kind], end.partition("-")[0])
