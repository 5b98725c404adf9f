"""A worker of jobs with faults: it writes numbered lines, trains with the others, and ends.

It notes in the file `ledger` of its folder what it has done, so that a test knows what has really
happened. Its argument has the settings; see `observations.WorkerSettings`.
"""

import json
import os
import signal
import sys
import time

settings = json.loads(sys.argv[1])
rank, round_ = int(os.environ["RANK"]), int(os.environ["PLAUNCH_ROUND"])
me = {
    "rank": rank,
    "local_rank": int(os.environ["LOCAL_RANK"]),
    "round": round_,
    "attempt": int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
    "world": int(os.environ["WORLD_SIZE"]),
    "master": f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
    "pid": os.getpid(),
    "agent": os.getppid(),
    "forked": settings["preload"] in sys.modules,
}
ledger = os.open("ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(event, **facts):
    line = {**me, "event": event, "at": time.time(), **facts}
    os.write(ledger, json.dumps(line).encode() + b"\n")


def write(text):
    # Workers of a node share a pipe: only writes of up to PIPE_BUF bytes are never interleaved.
    rest = text.encode()
    while rest:
        size = rest.rfind(b"\n", 0, 4096) + 1
        os.write(settings["stream"], rest[:size])
        rest = rest[size:]


def stop(signum, frame):
    note("stopped")
    if settings["is_graceful"]:
        os._exit(0)
    try:
        with open(f"resist.{settings['node']}") as file:
            takes = float(file.read())
    except FileNotFoundError:
        takes = settings["stop_time"]
    time.sleep(takes)
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)


def obey():
    """End with the exit code that a test wants, if it does."""
    try:
        with open(f"exit.{os.getpid()}") as file:
            code = int(file.read())
    except (FileNotFoundError, ValueError):
        return
    note("exit", code=code)
    os._exit(code)


def meet(what):
    """Wait for all ranks of this round, as in a collective."""
    folder = f"met-{round_}-{me['attempt']}-{me['master'].rpartition(':')[2]}"
    os.makedirs(folder, exist_ok=True)
    os.close(os.open(f"{folder}/{what}.{rank}", os.O_CREAT | os.O_WRONLY))
    while sum(name.startswith(what) for name in os.listdir(folder)) < me["world"]:
        obey()
        time.sleep(0.05)


if settings["is_graceful"] or settings["stop_time"] is not None:
    signal.signal(signal.SIGTERM, stop)
note("start")
lines, block = settings["lines"], settings["block"]
for first in range(0, lines, block):
    last = min(first + block, lines)
    write(
        "".join(f"L {round_} {rank} {me['pid']} {n} {'x' * (n % 80)}\n" for n in range(first, last))
    )
    note("wrote", lines=last)
if settings["meets"]:
    meet("start")
until = time.monotonic() + settings["work"]
while (left := until - time.monotonic()) > 0:
    obey()
    time.sleep(min(left, 0.05))
if rank == 0 and settings["save"] is not None:
    note("saving")
    time.sleep(settings["save"])
write(f"L {round_} {rank} {me['pid']} {lines} last\n")
note("wrote", lines=lines + 1)
if settings["meets"]:
    meet("done")
note("last")
os._exit(0)
