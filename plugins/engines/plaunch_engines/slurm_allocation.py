"""Holds an allocation of Slurm for a command, and releases it when the command ends.

    python -m plaunch_engines.slurm_allocation OPTION...

It runs `salloc` with these options. When Slurm has granted the allocation, it prints the job id and
the names of the nodes on one line. The line `end` on standard input releases the allocation. So
does the end of standard input, which is that of the command: then the agents get some time to end.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

END = b"end\n"

# salloc runs this, and releases the allocation after it. Without the line `end`, salloc or this
# program was killed.
_HOLD = (
    'echo "$SLURM_JOB_ID" $(scontrol show hostnames); read -r word || exec scancel "$SLURM_JOB_ID"'
)
_AGENTS_END = 6.0  # seconds for agents to end after the command; a little more than their grace
_ASK_INTERVAL = 2.0  # seconds between two questions why a job is pending
_ASK_TIMEOUT = 5.0
_FOUND = re.compile(rb"(Pending|Granted) job allocation (\d+)")
_NOT_STEPS = ("batch", "extern", "interactive")


class AllocationHolder:
    """Runs salloc, and lets it end.

    Args:
        options: of salloc.
    """

    def __init__(self, options: Sequence[str]) -> None:
        stdin, self._stdin = os.pipe()
        self._stderr, stderr = os.pipe()
        self._salloc = subprocess.Popen(
            ["salloc", "--kill-command", *options, "sh", "-c", _HOLD], stdin=stdin, stderr=stderr
        )
        os.close(stdin)
        os.close(stderr)
        self._job = ""
        self._is_granted = False
        self._reason = ""

    def run(self) -> int:
        """Hold the allocation until standard input has something; return salloc's exit code."""
        word = self._follow()
        if self._is_granted and word != END:
            self._wait_for_steps()
        if not self._is_granted:
            self._salloc.terminate()
        self._release()
        return self._salloc.wait()

    def _follow(self) -> bytes:
        """Pass on what salloc writes, and why the job is pending.

        Returns what standard input has: nothing at its end, also if salloc has ended.
        """
        inputs = [0, self._stderr]
        asked_at = 0.0
        while len(inputs) > 1 or self._salloc.poll() is None:
            ready, _, _ = select.select(inputs, [], [], _ASK_INTERVAL)
            for fd in ready:
                data = os.read(fd, 65536)
                if fd == 0:
                    return data
                if not data:
                    inputs.remove(fd)
                os.write(2, data)
                for state, job in _FOUND.findall(data):
                    self._job, self._is_granted = job.decode(), state == b"Granted"
            is_pending = self._job and not self._is_granted
            if is_pending and time.monotonic() - asked_at >= _ASK_INTERVAL:
                asked_at = time.monotonic()
                self._show_reason()
        return b""

    def _show_reason(self) -> None:
        """Write why the job is pending, if that has changed."""
        reason = self._ask("--format=%r")
        if reason not in (self._reason, "", "None"):
            self._reason = reason
            os.write(2, f"job {self._job} is pending: {reason}\n".encode())

    def _wait_for_steps(self) -> None:
        """Wait for the agents to end."""
        until = time.monotonic() + _AGENTS_END
        while time.monotonic() < until:
            steps = self._ask("--steps", "--format=%i").split()
            if all(step.rpartition(".")[2] in _NOT_STEPS for step in steps):
                return
            time.sleep(0.5)

    def _ask(self, *options: str) -> str:
        """Return what squeue prints about the job; nothing if it fails."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            asked = subprocess.run(
                ["squeue", "--noheader", f"--jobs={self._job}", *options],
                capture_output=True,
                timeout=_ASK_TIMEOUT,
                check=False,
            )
            return asked.stdout.decode(errors="replace").strip()
        return ""

    def _release(self) -> None:
        """Let the command of salloc end; if salloc was killed, it releases the allocation."""
        if self._salloc.poll() is None:
            with contextlib.suppress(BrokenPipeError):  # it has just ended
                os.write(self._stdin, END)
        os.close(self._stdin)


if __name__ == "__main__":
    sys.exit(AllocationHolder(sys.argv[1:]).run())
