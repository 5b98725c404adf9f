"""What plaunch says of the command line and the node: `--dry-run` and `--doctor`, as users call it.

Each runs in a process of its own, which can be ended if it takes too long, and which gets no
secrets.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from plaunch.process import LAUNCHER_VARIABLE, inheritable
from plaunch_events import WITHHELD, is_secret

from plaunch_report.failure_bundle.gathering import File, MissingError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# With the folders of the launcher, and not those that `-m` or `-c` would add.
_CODE = (
    "import sys; sys.path[:] = sys.argv.pop(1).split('\\n'); "
    "from plaunch.cli import entry_point; entry_point()"
)
_NICENESS = 10  # workers that start meanwhile come first
_LAST_WAIT = 0.2  # seconds for the end of a process that was killed
_JOB = re.compile(r"^job '([^'\n]+)'", re.MULTILINE)


def own_words() -> list[str] | None:
    """The words of this process's command line; None if plaunch was called by another program."""
    is_own = os.environ.get(LAUNCHER_VARIABLE) == str(os.getpid())
    return sys.argv[1:] if is_own else None


def find_plan(
    words: Sequence[str] | None, settings: Mapping[str, object], run_id: str, until: float
) -> Iterator[File]:
    """What `--dry-run` says; of a launch that no command line has begun, its settings.

    Args:
        words: of the command line, if there is one.
        settings: those of the launch, by name.
        run_id: the job, whose id the plan has in the place of one that it has made up.
        until: when it must be there, on the monotonic clock.

    Raises:
        MissingError: it is not.
    """
    if words is None:
        note = "the settings, as they were given in code"
        yield File("plan.txt", _format_settings(settings).encode(errors="replace"), note)
        return
    text = _run(["--dry-run", *words], until).decode(errors="surrogateescape")
    made_up = _JOB.search(text)
    if made_up is not None and settings.get("max_nodes") == 1:
        text = text.replace(made_up[1], run_id)
    note = "what --dry-run says of the command line now"
    yield File("plan.txt", text.encode(errors="surrogateescape"), note)


def find_doctor(words: Sequence[str] | None, until: float) -> Iterator[File]:
    """What `--doctor` finds with this command line.

    Raises:
        MissingError: it has not come to its end by `until`, on the monotonic clock.
    """
    yield File("doctor.txt", _run(["--doctor", *(words or ())], until))


def _run(words: Sequence[str], until: float) -> bytes:
    """What plaunch prints to stdout."""
    began = time.monotonic()
    # The launcher's mark, which tells its processes from workers that have left their parents.
    mark = {LAUNCHER_VARIABLE: str(os.getpid())} if own_words() is not None else {}
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
        raise MissingError(
            f"plaunch {words[0]} took longer than {until - began:.1f} s, and was ended"
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
