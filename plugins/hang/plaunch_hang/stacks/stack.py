"""Stacks as data: of a process, its threads, and what it has started."""

from __future__ import annotations

import enum
import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_ENDED = ("Z", "X", "x")
_INSTALLED = ("/site-packages/", "/dist-packages/")


class Origin(enum.Enum):
    """Whose code a frame is."""

    USER = "user"
    INSTALLED = "installed"  # a package that was installed
    PYTHON = "python"  # Python's own modules


class Frame(NamedTuple):
    """One call.

    Args:
        function: its name, with that of its class where Python tells it.
        file: the path of its file, or what Python has in its place, such as `<string>`.
        line: the number of the line that runs; 0 if it is unknown, or of no interest.
    """

    function: str
    file: str
    line: int = 0

    @property
    def origin(self) -> Origin:
        """Whose code it is, by its path."""
        if any(folder in self.file for folder in _INSTALLED):
            return Origin.INSTALLED
        if self.file.startswith("<frozen "):
            return Origin.PYTHON
        before, found, after = self.file.rpartition("/lib/python3")
        version = after.partition("/")[0]
        is_python = bool(before and found) and not version.strip(".0123456789tzip")
        return Origin.PYTHON if is_python else Origin.USER

    @property
    def is_library(self) -> bool:
        """Whether it is code of an installed package or of Python, and not the user's."""
        return self.origin is not Origin.USER

    def __str__(self) -> str:
        place = os.path.basename(self.file)
        return (
            f"{self.function} ({place}:{self.line})" if self.line else f"{self.function} ({place})"
        )


class ThreadStack(NamedTuple):
    """One thread.

    Args:
        name: as Python knows it; empty if it has none.
        number: the system's; 0 if it is unknown.
        frames: the innermost first; none while the interpreter begins.
        is_main: whether it is the main thread.
        has_lock: whether it holds the lock of the interpreter.
    """

    name: str
    number: int
    frames: tuple[Frame, ...]
    is_main: bool = False
    has_lock: bool = False


class KernelState(NamedTuple):
    """What the kernel tells of a process without a right to trace it, or of its first thread.

    Args:
        state: the letter: `R` runs, `S` sleeps, `D` sleeps uninterruptibly, `T` is stopped, `t` is
            held by a debugger, `Z` has ended.
        place: the function of the kernel that it sleeps in; empty if it runs, or is not told.
        call: the system call, as numbers; empty if it may not be read.
        stack: inside the kernel, the innermost first; empty if it may not be read.
        seconds: of the processors that all its threads have used.
        tracer: the process that traces it, such as a debugger; 0 if there is none.
    """

    state: str
    place: str = ""
    call: str = ""
    stack: tuple[str, ...] = ()
    seconds: float = 0.0
    tracer: int = 0

    def __str__(self) -> str:
        words = [f"state {self.state}"] if self.state else []
        if self.place:
            words.append(f"waits in {self.place}")
        elif self.call.partition(" ")[0].isdecimal():
            words.append(f"in system call {self.call.partition(' ')[0]}")
        if self.tracer:
            words.append(f"traced by pid {self.tracer}")
        return ", ".join(words)


class ProcessStacks(NamedTuple):
    """One process at one moment.

    Args:
        pid: its number.
        start: when it was started, in ticks of the system's clock; -1 if that is unknown.
        title: the beginning of its command line; empty if it may not be read.
        threads: the main thread first; none if they could not be read.
        reason: why they could not be read; empty if they were.
        kernel: what the kernel tells; None if the process is gone.
        children: what it has started, and what these have started.
        torch_answers: what torch's own server in it has told, as pairs of a page and a text.
    """

    pid: int
    start: int = -1
    title: str = ""
    threads: tuple[ThreadStack, ...] = ()
    reason: str = ""
    kernel: KernelState | None = None
    children: tuple[ProcessStacks, ...] = ()
    torch_answers: tuple[tuple[str, str], ...] = ()

    @property
    def has_ended(self) -> bool:
        """Whether it was gone already, or nothing but its exit code is left."""
        return self.kernel is None or self.kernel.state in _ENDED

    @property
    def main(self) -> ThreadStack | None:
        """The main thread; of a program that only starts one in Python, that of this one."""
        for process in self.walk():
            if process.threads:
                return process.threads[0]
            if len(process.children) != 1:
                return None
        return None

    def walk(self) -> Iterator[ProcessStacks]:
        """This process and all that it has started, each behind what has started it."""
        yield self
        for child in self.children:
            yield from child.walk()
