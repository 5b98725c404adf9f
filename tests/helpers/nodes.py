"""Launches on several nodes: their options and output."""

from __future__ import annotations

import contextlib
from pathlib import Path

# A worker without torch. It prints its rank, reports SIGUSR1, and exits as files say:
# `exit.<rank>.<attempt>` or `exit.<node>` holds its exit code, `exit` is for all.
WORKER = """\
import json, os, signal, socket, sys, time
def say(**facts):
    os.write(1, (json.dumps(facts) + "\\n").encode())  # all of it at once, as others write too
def notice(signum, frame):
    say(notice=signum, rank=os.environ["RANK"])
signal.signal(signal.SIGUSR1, notice)
names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK"
names += " ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RESTART_COUNT PLAUNCH_ROUND"
names += " PLAUNCH_JOB_ID TORCHELASTIC_RUN_ID"
say(host=socket.gethostname(), pid=os.getpid(), **{n: os.environ.get(n) for n in names.split()})
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
while True:
    for name in (f"exit.{rank}.{attempt}", *(f"exit.{node}" for node in sys.argv[1:]), "exit"):
        if os.path.exists(name):
            with open(name) as file:
                sys.exit(int(file.read()))
    time.sleep(0.02)
"""


def write_whole(path, text):
    """Write a file atomically."""
    part = path.with_name(f".{path.name}")
    part.write_text(str(text))
    part.rename(path)


def options(endpoint, nnodes, *more, backend="c10d", run_id="job", conf=""):
    """Return the options of one launcher; `conf` is added to `--rdzv-conf`."""
    return [
        f"--nnodes={nnodes}",
        f"--rdzv-backend={backend}",
        f"--rdzv-endpoint={endpoint}",
        f"--rdzv-id={run_id}",
        f"--rdzv-conf=last_call_timeout=1{conf and ','}{conf}",
        *more,
    ]


def of(name, workers):
    """Return the numbers that workers print under that name."""
    return [int(worker[name]) for worker in workers]


def check_secrets(workers, *secrets):
    """Assert that no command line and no worker's environment contains a secret."""
    seen = 0
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            words = cmdline.read_bytes()
            seen += b"plaunch" in words
            assert not any(secret in words for secret in secrets)
    assert seen >= 2
    for worker in workers:
        environ = Path(f"/proc/{worker['pid']}/environ").read_bytes()
        assert b"MASTER_ADDR" in environ
        assert not any(secret in environ for secret in secrets)


def check_refused(agents, argv):
    """Assert that nodes with other settings cannot join a job of `1:2` nodes and one restart."""
    for nnodes, max_restarts, told in (
        ("1:3", 1, "--nnodes=1:3 here, 1:2 there"),
        ("1:2", 4, "--max-restarts=4 here, 1 there"),
    ):
        other = agents.start(*argv(nnodes, f"--max-restarts={max_restarts}"))
        assert other.exit_code() == 112
        assert told in other.stderr
        assert "Traceback" not in other.stderr
