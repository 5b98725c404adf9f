"""The health check `command:PROGRAM`: the node is healthy if the program exits with 0."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import shutil
import signal
import subprocess
import threading
from typing import TYPE_CHECKING

from plaunch.doctor import Finding, Status
from plaunch.errors import UsageError
from plaunch.numbers import quote
from plaunch.process import describe_exit, inheritable
from plaunch.texts import printable

from plaunch_doctor.health import CheckDeadline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch.health import HealthOccasion
    from plaunch.plugin import PluginContext

_WHAT = "command"
_FORM = "write --health-check=command:PROGRAM, with arguments as in a shell"
_KEPT = 1 << 16  # bytes of output that are kept, to report the last line
_LONGEST = 300  # characters of that line
_POLL_PERIOD = 0.05  # seconds; needed because its children may keep its output open


class CommandCheck:
    """Runs a program in its own process group, and kills the group after a time limit.

    Args:
        context: the launch; the argument is the program with its arguments.

    Raises:
        UsageError: the program does not exist, or is not executable.
    """

    takes_argument = True

    def __init__(self, context: PluginContext) -> None:
        text = context.options.get("argument", "")
        self._words = _split(text)
        self._run_id = context.run_id
        self._deadline = CheckDeadline()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_over = False

    def check(self, occasion: HealthOccasion) -> Iterator[Finding]:
        """Run the program; report its last line."""
        self._deadline.begin(occasion)
        environ = inheritable(os.environ)
        environ["PLAUNCH_HEALTH_OCCASION"] = "restart" if occasion.is_restart else "start"
        environ["TORCHELASTIC_RUN_ID"] = self._run_id
        name = os.path.basename(self._words[0])
        try:
            process = self._start(environ)
        except OSError as error:
            text = f"{self._words[0]} cannot be started: {error.strerror or error}"
            yield Finding(Status.PROBLEM, _WHAT, text)
            return
        if process is None:
            return  # closed
        try:
            last, code = self._wait(process)
        finally:
            self._kill(process)
        if code is None:
            reason = f"has not ended within {self._deadline.seconds:g} s, and was killed"
        else:
            reason = f"{'was' if code < 0 else 'ended with'} {describe_exit(code)}"
        text = f"{name} {reason}" + (f": {last}" if last else "")
        if code == 0:
            yield Finding(Status.OK, _WHAT, f"{name}: {last}" if last else f"{name} succeeded")
        else:
            yield Finding(Status.PROBLEM, _WHAT, text)

    def close(self) -> None:
        """Kill the program if it is running."""
        with self._lock:
            self._is_over = True
            process = self._process
        self._deadline.end()
        if process is not None:
            self._kill(process)

    def _start(self, environ: dict[str, str]) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._is_over:
                return None
            self._process = subprocess.Popen(
                self._words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environ,
                start_new_session=True,
            )
            return self._process

    def _wait(self, process: subprocess.Popen[bytes]) -> tuple[str, int | None]:
        """Return the last line and the exit code; None if time is up."""
        kept, pipe = b"", process.stdout
        with contextlib.nullcontext() if pipe is None else pipe:
            fd = None if pipe is None else pipe.fileno()
            while (remaining := self._deadline.remaining) > 0:
                has_ended = process.poll() is not None
                timeout = 0.0 if has_ended else min(remaining, _POLL_PERIOD)
                if fd is None:
                    self._deadline.pause()
                elif select.select([fd], [], [], timeout)[0]:
                    data = os.read(fd, _KEPT)
                    kept = (kept + data)[-_KEPT:]
                    if data:
                        continue
                    fd = None  # all processes have closed it
                if has_ended:
                    return _last_line(kept), process.returncode
        return _last_line(kept), None

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill the process group, and reap the program."""
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)


def _split(text: str) -> list[str]:
    """Return the program and its arguments.

    Raises:
        UsageError: the program is missing or not executable.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"the health check 'command' cannot read {quote(text)}: {error}; {_FORM}"
        ) from None
    if not words:
        raise UsageError(f"the health check 'command' has no program; {_FORM}")
    found = shutil.which(words[0])
    if found is None:
        why = "may not be executed" if os.path.exists(words[0]) else "does not exist"
        raise UsageError(f"the program {words[0]!r} of the health check 'command' {why}")
    return [found, *words[1:]]


def _last_line(output: bytes) -> str:
    lines = output.decode("utf-8", "replace").splitlines()
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return printable(last, _LONGEST)
