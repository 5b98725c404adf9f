"""The output of `--dry-run` and `--doctor` for the command line of the launch.

Each runs in a separate process, which is killed if it takes too long, and which gets no secrets.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from plaunch.process import LAUNCHER_VARIABLE, RUN_ID_VARIABLE, inheritable
from plaunch_events import WITHHELD, is_secret

from plaunch_report.failure_bundle.gathering import File, LateError, MissingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

# Use the launcher's sys.path, without the folders that `-m` or `-c` would add.
_CODE = (
    "import sys; sys.path[:] = sys.argv.pop(1).split('\\n'); "
    "from plaunch.cli import entry_point; entry_point()"
)
_NICENESS = 10  # workers that start meanwhile have priority
_LAST_WAIT = 0.2  # seconds for a killed process to end


def own_words() -> list[str] | None:
    """The words of this process's command line; None if plaunch was called by another program."""
    is_own = os.environ.get(LAUNCHER_VARIABLE) == str(os.getpid())
    return sys.argv[1:] if is_own else None


def find_plan(
    words: Sequence[str] | None,
    settings: Mapping[str, object],
    run: Callable[[Sequence[str]], bytes],
) -> Iterator[File]:
    """The output of `--dry-run`; for a launch without a command line, its settings.

    Args:
        words: the words of the command line, if there is one.
        settings: the settings of the launch, by name.
        run: runs plaunch with the given words, and returns its stdout.

    Raises:
        MissingError: `--dry-run` failed or took too long.
    """
    if words is None:
        note = "the settings given in code"
        yield File("plan.txt", _format_settings(settings).encode(errors="replace"), note)
        return
    note = "the output of --dry-run for the command line"
    yield File("plan.txt", run(["--dry-run", *words]), note)


def find_doctor(
    words: Sequence[str] | None, run: Callable[[Sequence[str]], bytes]
) -> Iterator[File]:
    """The output of `--doctor` for this command line; `run` is that of `find_plan`.

    Raises:
        MissingError: it failed or took too long.
    """
    yield File("doctor.txt", run(["--doctor", *(words or ())]))


def run_plaunch(words: Sequence[str], until: float, run_id: str) -> bytes:
    """Run plaunch and return its stdout; kill it at `until`, on the monotonic clock.

    Where a launch would generate a run id, it shows `run_id`.

    Raises:
        MissingError: it printed nothing, or was killed.
    """
    began = time.monotonic()
    # The variable distinguishes the launcher's own processes from orphans of workers.
    mark = {LAUNCHER_VARIABLE: str(os.getpid())} if own_words() is not None else {}
    mark[RUN_ID_VARIABLE] = run_id
    path = "\n".join(map(str, sys.path))
    process = subprocess.Popen(
        [sys.executable, "-c", _CODE, path, *words],
        env={**inheritable(os.environ), **mark, "LOGLEVEL": "WARNING"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
    try:
        out, err = process.communicate(timeout=max(until - time.monotonic(), 0.0))
    except subprocess.TimeoutExpired:
        raise LateError(
            f"plaunch {words[0]} took longer than {until - began:.1f} s, and was killed"
        ) from None
    finally:
        _end(process)
    if not out:
        last = (err.decode(errors="replace").strip().splitlines() or ["nothing"])[-1]
        raise MissingError(f"plaunch {words[0]} printed nothing; its last line on stderr: {last}")
    return out


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_LAST_WAIT)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _format_settings(settings: Mapping[str, object]) -> str:
    return "".join(f"{name} = {_shown(value)!r}\n" for name, value in settings.items())


def _shown(value: object) -> object:
    if not isinstance(value, dict):
        return value
    withheld = WITHHELD.decode()
    return {key: withheld if is_secret(str(key)) else _shown(value[key]) for key in value}
