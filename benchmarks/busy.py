"""Processes that keep the processors busy, for benchmarks of launchers on a busy machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class BusyProcesses:
    """Programs in a busy loop, suspended except between `resume` and `pause`.

    They are in the session of this process, and so are the launchers that it starts. The kernel
    therefore shares the processors among all of them, also with autogroups (`man 7 sched`).

    Args:
        count: their number.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> BusyProcesses:
        for _ in range(self._count):
            process = subprocess.Popen(["sh", "-c", "while :; do :; done"])
            self._processes.append(process)
            process.send_signal(signal.SIGSTOP)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()

    def resume(self) -> None:
        """Resume all of them."""
        self._send(signal.SIGCONT)

    def pause(self) -> None:
        """Suspend all of them."""
        self._send(signal.SIGSTOP)

    def _send(self, signum: signal.Signals) -> None:
        for process in self._processes:
            os.kill(process.pid, signum)


@contextlib.contextmanager
def first_in_line() -> Iterator[None]:
    """Give this process the highest priority, if permitted, so that it acts in time.

    Start no processes in this context, because they would inherit the priority.
    """
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)
