"""Reading the stacks of one process with py-spy, which runs as a program."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from shutil import which

from plaunch.process import read_proc
from plaunch.texts import printable

from plaunch_hang.stacks.stack import StackFrame, ThreadStack

MOST_FRAMES = 500  # of a thread; the innermost ones
_MOST_THREADS = 1000
_MOST_TEXT = 300  # characters of py-spy's error message
_KILL_WAIT = 0.2  # seconds


class UnreadableError(Exception):
    """py-spy cannot read a process; the message says why, as part of a sentence.

    Args:
        reason: why.
        is_lasting: whether another try would fail too.
    """

    def __init__(self, reason: str, *, is_lasting: bool) -> None:
        super().__init__(reason)
        self.is_lasting = is_lasting


def find_py_spy() -> str:
    """Find the program py-spy, next to this interpreter or on PATH.

    Raises:
        FileNotFoundError: it is not installed.
    """
    folder = os.path.dirname(sys.executable)
    found = which("py-spy", path=os.pathsep.join([folder, os.environ.get("PATH", "")]))
    if found is None:
        raise FileNotFoundError("py-spy is not installed (pip install 'plaunch[stacks]')")
    return found


def run_py_spy(program: str, pid: int, seconds: float, *options: str) -> bytes:
    """Return the output of `py-spy dump --json` for a process, which it does not pause.

    Args:
        program: the path of py-spy.
        pid: the process id.
        seconds: the timeout.
        options: further options of `dump`.

    Raises:
        UnreadableError: the process cannot be read.
    """
    try:
        process = subprocess.Popen(
            [program, "dump", *options, "--nonblocking", "--json", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={},
        )
    except OSError as error:
        raise UnreadableError(f"py-spy cannot be run: {error}", is_lasting=True) from None
    with contextlib.ExitStack() as stack:
        for pipe in (process.stdout, process.stderr):
            stack.enter_context(pipe)  # type: ignore[arg-type]
        try:
            written, output = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            # Reading a process in an uninterruptible sleep may block py-spy the same way.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_KILL_WAIT)
            raise UnreadableError(f"not read within {seconds:.1f} s", is_lasting=False) from None
    if process.returncode:
        raise explain(output.decode(errors="replace"))
    return written


def read_threads(program: str, pid: int, seconds: float) -> tuple[ThreadStack, ...]:
    """Read the threads of a process, the main thread first, with `run_py_spy`.

    Raises:
        UnreadableError: it cannot be read.
    """
    return parse_threads(run_py_spy(program, pid, seconds), pid)


def explain(output: str) -> UnreadableError:
    """Explain py-spy's error message."""
    text = " ".join(output.partition("Stack backtrace:")[0].split())
    lower = text.lower()
    if "permission denied" in lower or "operation not permitted" in lower:
        return UnreadableError(f"the system does not allow it{_find_rule()}", is_lasting=True)
    if "python version from target" in lower or "python interpreter" in lower:
        return UnreadableError("it is not Python", is_lasting=True)
    if "no such file or directory" in lower or "no such process" in lower:
        return UnreadableError("it has ended", is_lasting=True)
    text = printable(text.removeprefix("Error: "), _MOST_TEXT)
    return UnreadableError(f"py-spy: {text or 'failed without a message'}", is_lasting=False)


def _find_rule() -> str:
    scope = read_proc("sys/kernel/yama/ptrace_scope").decode().strip()
    return f" (kernel.yama.ptrace_scope is {scope})" if scope not in ("", "0") else ""


def parse_threads(text: bytes, pid: int) -> tuple[ThreadStack, ...]:
    """Parse the output of `py-spy dump --json`; the main thread comes first.

    Raises:
        UnreadableError: the output is invalid.
    """
    try:
        threads = [_parse_thread(thread, pid) for thread in json.loads(text)[:_MOST_THREADS]]
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError):
        shown = text[:60].decode(errors="replace")
        raise UnreadableError(f"py-spy has written {shown!r}", is_lasting=False) from None
    if len(threads) == 1:  # py-spy does not know the thread ids of every version of Python
        threads = [threads[0]._replace(is_main=True)]
    return tuple(sorted(threads, key=lambda thread: (not thread.is_main, thread.number)))


def _parse_thread(thread: dict[str, object], pid: int) -> ThreadStack:
    name, number, frames = thread["thread_name"], thread["os_thread_id"], thread["frames"]
    if not isinstance(frames, list):
        raise TypeError
    return ThreadStack(
        name=printable(str(name)) if name else "",
        number=number if isinstance(number, int) else 0,
        frames=tuple(
            StackFrame(
                printable(str(frame["name"])),
                printable(str(frame["filename"])),
                max(int(frame["line"] or 0), 0),
            )
            for frame in frames[:MOST_FRAMES]
        ),
        is_main=number == pid or (number is None and name == "MainThread"),
        has_lock=thread.get("owns_gil") is True,
    )
