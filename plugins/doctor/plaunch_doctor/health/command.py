"""`command:PROGRAM`: any program; exit code 0 means that the node is healthy."""

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

from plaunch_doctor.health.waiting import Patience

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch.health import HealthOccasion
    from plaunch.plugin import PluginContext

_WHAT = "command"
_FORM = "write --health-check=command:PROGRAM, with arguments as in a shell"
_KEPT = 1 << 16  # bytes of its last output, among which the last line is looked for
_LONGEST = 300  # characters of that line
_SLICE = 0.05  # seconds between two looks whether it has ended: others may hold its output open


class CommandCheck:
    """Runs a program in a process group of its own, which is killed if it takes too long.

    Args:
        context: the launch; the argument is the program with its arguments.

    Raises:
        UsageError: there is no such program, or it cannot be executed.
    """

    takes_argument = True

    def __init__(self, context: PluginContext) -> None:
        text = context.options.get("argument", "")
        self._words = _split(text)
        self._run_id = context.run_id
        self._patience = Patience()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_over = False

    def check(self, occasion: HealthOccasion) -> Iterator[Finding]:
        """Run it."""
        self._patience.begin(occasion)
        environ = inheritable(os.environ)
        environ["PLAUNCH_HEALTH_OCCASION"] = "restart" if occasion.is_restart else "start"
        environ["TORCHELASTIC_RUN_ID"] = self._run_id
        name = os.path.basename(self._words[0])
        try:
            process = self._start(environ)
        except OSError as error:
            said = f"{self._words[0]} cannot be started: {error.strerror or error}"
            yield Finding(Status.PROBLEM, _WHAT, said)
            return
        if process is None:
            return  # the launch has ended
        try:
            last, code = self._wait(process)
        finally:
            self._kill(process)
        if code is None:
            reason = f"has not ended within {self._patience.seconds:g} s, and was killed"
        else:
            reason = f"{'was' if code < 0 else 'ended with'} {describe_exit(code)}"
        said = f"{name} {reason}" + (f": {last}" if last else "")
        if code == 0:
            yield Finding(Status.OK, _WHAT, f"{name}: {last}" if last else f"{name} is content")
        else:
            yield Finding(Status.PROBLEM, _WHAT, said)

    def close(self) -> None:
        """Kill it, if it still runs."""
        with self._lock:
            self._is_over = True
            process = self._process
        self._patience.end()
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
        """Its last line and its exit code; None if it takes too long."""
        kept, pipe = b"", process.stdout
        with contextlib.nullcontext() if pipe is None else pipe:
            fd = None if pipe is None else pipe.fileno()
            while (remaining := self._patience.remaining) > 0:
                has_ended = process.poll() is not None
                timeout = 0.0 if has_ended else min(remaining, _SLICE)
                if fd is None:
                    self._patience.pause()
                elif select.select([fd], [], [], timeout)[0]:
                    data = os.read(fd, _KEPT)
                    kept = (kept + data)[-_KEPT:]
                    if data:
                        continue
                    fd = None  # nobody has it open any more
                if has_ended:
                    return _last_line(kept), process.returncode
        return _last_line(kept), None

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        """Leave nothing of its process group, and no zombie of it."""
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)


def _split(text: str) -> list[str]:
    """The program and its arguments.

    Raises:
        UsageError: there is none that could be executed.
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
    last = "".join(char if char.isprintable() else " " for char in last)
    return last if len(last) <= _LONGEST else f"{last[: _LONGEST - 3]}..."
