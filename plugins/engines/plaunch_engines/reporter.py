"""Writes the records of an agent, between the lines of its output."""

from __future__ import annotations

import contextlib
import os
import threading

from plaunch_engines import records


class Reporter:
    """Writes records to the command that started this agent.

    Args:
        nonce: shows the command that a record is of this agent; workers must not get it.
        stdout: the agent's standard output, which workers inherit.
    """

    def __init__(self, nonce: str, stdout: int) -> None:
        self._nonce = nonce
        self._stdout = stdout

    def report(self, kind: str, **fields: object) -> None:
        """Write a record to standard error."""
        self._write(records.encode(self._nonce, kind=kind, **fields))

    def report_failure(self, text: str, **fields: object) -> None:
        """Write the records of a failure."""
        self._write(records.encode_failure(self._nonce, text, **fields))

    def report_last_message(self, text: str, level: str) -> None:
        """Write the records of a message that the command shows below its report."""
        del level  # they inform
        self._write(records.encode_last_message(self._nonce, text))

    def finish(self, code: int, *, has_succeeded: bool, verdict: str) -> None:
        """Report the end of the agent, and that both streams are complete.

        Waits as long as the command does not read: it has another limit, or has ended, which ends
        this process, too.

        Args:
            code: the exit code.
            has_succeeded: whether all workers of this node have succeeded in its last round.
            verdict: how the job ended, according to its own record; empty if that is not known.
        """
        from plaunch.cli import STDERR

        self.report("end", code=code, has_succeeded=has_succeeded, verdict=verdict)
        STDERR.finish(threading.TIMEOUT_MAX)
        os.set_blocking(self._stdout, True)  # a worker may have changed that
        with contextlib.suppress(OSError):  # the command has ended
            os.write(self._stdout, records.encode(self._nonce, kind="end_of_output"))

    def _write(self, lines: bytes) -> None:
        from plaunch.cli import STDERR

        for line in lines.splitlines(keepends=True):  # each with one write, so that it stays whole
            STDERR.write(line.decode())
