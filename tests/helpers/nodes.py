"""Launches on several nodes: their words, and what is seen of them."""

from __future__ import annotations

import contextlib
from pathlib import Path


def options(endpoint, nnodes, *more, backend="c10d", run_id="job", conf=""):
    """The options of one launcher; `conf` is more for `--rdzv-conf`, with commas between."""
    return [
        f"--nnodes={nnodes}",
        f"--rdzv-backend={backend}",
        f"--rdzv-endpoint={endpoint}",
        f"--rdzv-id={run_id}",
        f"--rdzv-conf=last_call_timeout=1{conf and ','}{conf}",
        *more,
    ]


def of(name, workers):
    """What workers say of themselves under that name, which are numbers."""
    return [int(worker[name]) for worker in workers]


def check_secrets(workers, *secrets):
    """Assert that no command line, and no worker's environment, has one of the secrets."""
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
    """Assert that nobody joins a job of `1:2` nodes and one restart with other settings."""
    for nnodes, max_restarts, told in (
        ("1:3", 1, "--nnodes=1:3 here, 1:2 there"),
        ("1:2", 4, "--max-restarts=4 here, 1 there"),
    ):
        other = agents.start(*argv(nnodes, f"--max-restarts={max_restarts}"))
        assert other.exit_code() == 112
        assert told in other.stderr
        assert "Traceback" not in other.stderr
