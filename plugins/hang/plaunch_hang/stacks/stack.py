"""Stacks as data: of a process, its threads, and its descendants."""

from __future__ import annotations

import enum
import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_ENDED = ("Z", "X", "x")
_INSTALLED = ("/site-packages/", "/dist-packages/")
_LIBRARY = "/lib/python3"  # the beginning of the folder of Python's own modules


class CodeOrigin(enum.Enum):
    """The origin of a frame's code."""

    USER = "user"
    INSTALLED = "installed"  # an installed package
    PYTHON = "python"  # Python's own modules


class StackFrame(NamedTuple):
    """One frame of a stack.

    Args:
        function: the name of the function, with that of its class if Python has it.
        file: the path of its file, or Python's placeholder, such as `<string>`.
        line: the number of the current line; 0 if it is unknown or irrelevant.
    """

    function: str
    file: str
    line: int = 0

    @property
    def origin(self) -> CodeOrigin:
        """The origin of its code, by the path."""
        if any(folder in self.file for folder in _INSTALLED):
            return CodeOrigin.INSTALLED
        if self.file.startswith("<frozen "):
            return CodeOrigin.PYTHON
        before, found, after = self.file.rpartition(_LIBRARY)
        version = after.partition("/")[0]
        is_python = bool(before and found) and not version.strip(".0123456789tzip")
        return CodeOrigin.PYTHON if is_python else CodeOrigin.USER

    @property
    def is_library(self) -> bool:
        """Whether it is code of an installed package or of Python."""
        return self.origin is not CodeOrigin.USER

    @property
    def module_path(self) -> str:
        """The path of a module of a library, such as `multiprocessing/queues.py`; else empty."""
        if self.origin is CodeOrigin.INSTALLED:
            return self.file.rpartition("-packages/")[2]
        if self.origin is CodeOrigin.PYTHON:
            return self.file.rpartition(_LIBRARY)[2].partition("/")[2]
        return ""

    def __str__(self) -> str:
        place = os.path.basename(self.file)
        return (
            f"{self.function} ({place}:{self.line})" if self.line else f"{self.function} ({place})"
        )


class ThreadStack(NamedTuple):
    """One thread.

    Args:
        name: its name in Python; may be empty.
        number: its thread id; 0 if unknown.
        frames: its frames, innermost first; empty while the interpreter starts.
        is_main: whether it is the main thread.
        has_lock: whether it holds the interpreter lock (GIL).
    """

    name: str
    number: int
    frames: tuple[StackFrame, ...]
    is_main: bool = False
    has_lock: bool = False


class KernelState(NamedTuple):
    """The state of a process or its main thread, as reported by the kernel.

    Args:
        state: the letter in /proc: `R` runs, `S` sleeps, `D` sleeps uninterruptibly, `T` is
            stopped, `t` is stopped by a debugger, `Z` has ended; other threads may still run.
        place: the kernel function that it sleeps in; empty if it runs, or if unknown.
        call: the system call, as numbers; empty if it cannot be read.
        stack: the functions in the kernel, innermost first; empty if they cannot be read.
        seconds: the CPU time of all threads.
        tracer: the pid of the process that traces it, such as a debugger; 0 if none does.
        tracer_name: the name of that process; empty if it is unknown.
        terminal: the terminal from which its main thread waits for input; empty if it does not.
        threads: the number of its threads.
    """

    state: str
    place: str = ""
    call: str = ""
    stack: tuple[str, ...] = ()
    seconds: float = 0.0
    tracer: int = 0
    tracer_name: str = ""
    terminal: str = ""
    threads: int = 1

    @property
    def has_ended(self) -> bool:
        """Whether all of its threads have ended."""
        return self.state in _ENDED and self.threads <= 1

    def __str__(self) -> str:
        words = [f"state {self.state}"] if self.state else []
        if self.state in _ENDED and not self.has_ended:
            words = [f"its main thread has ended, {self.threads - 1} others have not"]
        if self.terminal:
            words.append(f"waits for input from {self.terminal}")
        elif self.place:
            words.append(f"waits in {self.place}")
        elif self.call.partition(" ")[0].isdecimal():
            words.append(f"in system call {self.call.partition(' ')[0]}")
        if self.tracer:
            words.append(f"traced by pid {self.tracer}")
        return ", ".join(words)


class ProcessStacks(NamedTuple):
    """The stacks of one process at one time.

    Args:
        pid: its process id.
        start: its start time in clock ticks; -1 if unknown.
        title: the beginning of its command line; empty if it cannot be read.
        threads: the threads, the main thread first; empty if they could not be read.
        reason: why they could not be read; empty if they were.
        kernel: its state reported by the kernel; None if the process has ended.
        children: its child processes, with their own children.
    """

    pid: int
    start: int = -1
    title: str = ""
    threads: tuple[ThreadStack, ...] = ()
    reason: str = ""
    kernel: KernelState | None = None
    children: tuple[ProcessStacks, ...] = ()

    @property
    def has_ended(self) -> bool:
        """Whether it had ended or was a zombie."""
        return self.kernel is None or self.kernel.has_ended

    @property
    def main(self) -> ThreadStack | None:
        """The main thread; for a wrapper with a single Python child, that of the child."""
        for process in self.walk():
            if process.threads:
                return process.threads[0]
            if len(process.children) != 1:
                return None
        return None

    def walk(self) -> Iterator[ProcessStacks]:
        """This process and its descendants, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()
