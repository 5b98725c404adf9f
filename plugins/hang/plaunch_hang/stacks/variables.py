"""Digests of the variables of a process, which change in a loop that stays on one line.

Local variables come from py-spy, which shows those of functions only. A loop at module level
changes globals, so this module reads those of the main module from the memory of the process.

The process must run the same build of Python as the launcher: the same file, mapped at another
address. The launcher finds the offset of `sys.modules` in its own memory, reads its own main module
with it as a check, and then follows the same pointers in the other process. This is done once.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import struct
import sys
import time
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from plaunch.process import read_proc

from plaunch_hang.stacks.py_spy import UnreadableError, find_py_spy, run_py_spy
from plaunch_hang.stacks.stack import StackFrame
from plaunch_hang.stacks.taking import read_in_parallel
from plaunch_hang.stacks.waiting import count_waiting, waits_for_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from typing import Any, TypeVar

    _T = TypeVar("_T")

_READ_TIMEOUT = 3.0  # seconds for one process
_TOTAL_TIMEOUT = 10.0  # seconds for all processes
_WORD = struct.calcsize("P")
_HEADER = object.__basicsize__  # bytes: the number of references and the type
_TEXT = sys.getsizeof("") - 1  # bytes in front of the characters of an ASCII string
_RUNTIME = 1 << 13  # bytes of _PyRuntime in which the main interpreter is searched for
_INTERPRETER = 1 << 19  # bytes of an interpreter in which sys.modules is searched for
_MOST_MODULES = 1000  # searched for the main module, which is one of the first
_MOST_GLOBALS = 10_000
_MAIN = b"__main__"
_LAST, _FINAL = b"last_value", b"ps1"  # names in `sys`

_UNREADABLE = (ImportError, OSError, OverflowError, ValueError, AttributeError, struct.error)

# The bytes of these objects are their value, or contain their size. Others are compared by
# identity, because background threads may use a lock or an event while the main thread hangs.
_VALUES: dict[type, int] = {
    int: int.__basicsize__ + int.__itemsize__,
    float: float.__basicsize__,
    list: list.__basicsize__,
    dict: dict.__basicsize__,
}


def read_all_variables(pids: Collection[int]) -> dict[int, bytes]:
    """Read the variables of processes in parallel.

    Processes that `read_variables` cannot read in time are left out.
    """
    found: dict[int, bytes | None] = {}
    until = time.monotonic() + _TOTAL_TIMEOUT
    read_in_parallel(pids, lambda pid: found.update({pid: read_variables(pid)}), until, "variables")
    return {pid: value for pid, value in dict(found).items() if value is not None}


def read_variables(pid: int) -> bytes | None:
    """Hash the local variables of the main thread and the globals of the main module.

    Functions that wait in a library (`plaunch_hang.stacks.count_waiting`) are left out. If the main
    thread may wait for another thread, the stacks and variables of threads that do not wait are
    included. The hash stays the same while the thread waits; counters and new objects change it.
    Return None if the local variables cannot be read; unreadable globals are left out. The process
    is not paused.
    """
    try:
        threads = json.loads(run_py_spy(find_py_spy(), pid, _READ_TIMEOUT, "--locals"))
        (main,) = (thread for thread in threads if thread["os_thread_id"] in (pid, None))
        frames = _frames_of(main)
        shown = [frame["locals"] for frame in main["frames"][count_waiting(frames) :]]
        if waits_for_thread(frames):
            shown += [
                thread["frames"]
                for thread in threads
                if thread is not main and not count_waiting(_frames_of(thread))
            ]
        text = json.dumps(shown)
    except (OSError, UnreadableError, ValueError, TypeError, KeyError, RecursionError):
        return None
    main_globals = read_main_globals(pid) or b""
    return hashlib.blake2b(text.encode() + main_globals, digest_size=16).digest()


def _frames_of(thread: dict[str, Any]) -> list[StackFrame]:
    return [StackFrame(frame["name"], frame["filename"]) for frame in thread["frames"]]


class _Memory:
    """The memory of a process.

    Raises:
        OSError: it cannot be read.
    """

    def __init__(self, pid: int) -> None:
        self._fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)

    def __enter__(self) -> _Memory:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def read(self, address: int, size: int) -> bytes:
        """Read bytes; raises OSError, OverflowError or ValueError."""
        data = os.pread(self._fd, size, address)
        if len(data) != size:
            raise ValueError(address)
        return data

    def words(self, address: int, count: int) -> tuple[int, ...]:
        """Read pointers, or numbers of the same size."""
        return struct.unpack(f"{count}P", self.read(address, count * _WORD))

    def find(self, address: int, size: int, word: int) -> int:
        """The offset of the first word with a value; raises ValueError."""
        data = os.pread(self._fd, size, address)
        return struct.unpack(f"{len(data) // _WORD}P", data).index(word) * _WORD


class _Build(NamedTuple):
    """The memory layout of this build of Python.

    Args:
        file: device and inode of the file of the interpreter.
        base: address of that file in this process.
        runtime: address of `_PyRuntime` in this process.
        interpreter: offset in `_PyRuntime` of the pointer to the main interpreter.
        modules: offset in the interpreter of the pointer to `sys.modules`.
        names: offset in the interpreter of the pointer to the dict of `sys`.
    """

    file: tuple[str, str]
    base: int
    runtime: int
    interpreter: int
    modules: int
    names: int


def read_main_globals(pid: int) -> bytes | None:
    """Read the globals of a process's main module, as bytes that change if one of them changes.

    Return None if the process runs another build of Python, or cannot be read. It is not paused.
    """

    def read(memory: _Memory, build: _Build, shift: int) -> bytes:
        return _dump(memory, _find_dict(memory, build, shift), shift)

    return _read_process(pid, read)


def has_uncaught_exception(pid: int) -> bool | None:
    """Whether the interpreter of a process has printed an exception that its program did not catch.

    It then sets `sys.last_value`. Before it destroys the modules, it sets `last_value`, `ps1` and
    others to None in any case: new names come behind those that were there. Return None if the
    process runs another build of Python, or cannot be read: its interpreter is gone, for example.
    It is not paused.
    """

    def read(memory: _Memory, build: _Build, shift: int) -> bool:
        interpreter = _find_interpreter(memory, build, shift)
        (names,) = memory.words(interpreter + build.names, 1)
        for name, _ in _entries(memory, names, _MOST_GLOBALS):
            if _is_text(memory, name, _LAST):
                return True
            if _is_text(memory, name, _FINAL):
                return False
        return False

    return _read_process(pid, read)


def _read_process(pid: int, read: Callable[[_Memory, _Build, int], _T]) -> _T | None:
    """Call `read` with the memory of a process, the build, and how far it is from this one's."""
    build = _find_build()
    if build is None:
        return None
    try:
        shift = _find_base(pid, build.file) - build.base
        with _Memory(pid) as memory:
            return read(memory, build, shift)
    except _UNREADABLE:
        return None


@functools.cache  # a process keeps its build
def _find_build() -> _Build | None:
    """Find the layout in this process; None if this build has another one."""
    try:
        return _read_build()
    except _UNREADABLE:
        return None


def _read_build() -> _Build:
    import ctypes  # suspected hangs only

    api = ctypes.pythonapi
    api.PyInterpreterState_Main.restype = ctypes.c_void_p
    runtime = ctypes.addressof(ctypes.c_char.in_dll(api, "_PyRuntime"))
    interpreter = api.PyInterpreterState_Main()
    file, base = _find_file(runtime)
    with _Memory(os.getpid()) as memory:
        build = _Build(
            file,
            base,
            runtime,
            memory.find(runtime, _RUNTIME, interpreter),
            memory.find(interpreter, _INTERPRETER, id(sys.modules)),
            memory.find(interpreter, _INTERPRETER, id(vars(sys))),
        )
        found = _find_dict(memory, build, 0)
        if found != id(vars(sys.modules["__main__"])):
            raise ValueError(found)
        values = {value for _, value in _entries(memory, found, _MOST_GLOBALS)}
        if id(sys.modules["__main__"].__name__) not in values:
            raise ValueError(found)
    return build


def _find_interpreter(memory: _Memory, build: _Build, shift: int) -> int:
    (interpreter,) = memory.words(build.runtime + shift + build.interpreter, 1)
    return interpreter


def _find_dict(memory: _Memory, build: _Build, shift: int) -> int:
    """The address of the dict of the main module."""
    (modules,) = memory.words(_find_interpreter(memory, build, shift) + build.modules, 1)
    for key, value in _entries(memory, modules, _MOST_MODULES):
        if _is_text(memory, key, _MAIN):
            (found,) = memory.words(value + _HEADER, 1)
            return found
    raise ValueError(modules)


def _is_text(memory: _Memory, address: int, text: bytes) -> bool:
    """Whether an ASCII string of the process has this text."""
    (length,) = memory.words(address + _HEADER, 1)
    return length == len(text) and memory.read(address + _TEXT, length) == text


def _entries(memory: _Memory, address: int, most: int) -> Iterator[tuple[int, int]]:
    """The addresses of the first keys and values of a dict."""
    _used, _version, keys = memory.words(address + _HEADER, 3)
    if sys.version_info >= (3, 11):
        log_index, kind = memory.read(keys + _WORD + 1, 2)
        start, width = keys + 4 * _WORD + (1 << log_index), 2 if kind else 3
        (count,) = memory.words(keys + 3 * _WORD, 1)
    else:
        size, _lookup, _usable, count = memory.words(keys + _WORD, 4)
        index = next((n for n in (1, 2, 4) if size < 1 << (8 * n)), 8)
        start, width = keys + 5 * _WORD + size * index, 3
    words = iter(memory.words(start, min(count, most) * width))
    while entry := tuple(islice(words, width)):
        if entry[-1]:  # not deleted
            yield entry[-2], entry[-1]


def _dump(memory: _Memory, address: int, shift: int) -> bytes:
    sizes = {id(kind) + shift: size for kind, size in _VALUES.items()}
    parts = []
    for _, value in _entries(memory, address, _MOST_GLOBALS):
        (kind,) = memory.words(value + _HEADER - _WORD, 1)
        parts.append(value.to_bytes(_WORD, "little"))
        if kind in sizes:
            # Skip the reference count, which other threads change.
            parts.append(memory.read(value + _HEADER, sizes[kind] - _HEADER))
    return b"".join(parts)


def _find_file(address: int) -> tuple[tuple[str, str], int]:
    """Device and inode of the file that has an address of this process, and the file's base."""
    file = None
    for start, end, _, mapped in _maps(os.getpid()):
        file = mapped or file  # the .bss segment is mapped right after its file, without a file
        if start <= address < end and file:
            return file, _find_base(os.getpid(), file)
    raise ValueError(address)


def _find_base(pid: int, file: tuple[str, str]) -> int:
    """The address at which the beginning of a file is mapped in a process; raises ValueError."""
    for start, _, offset, mapped in _maps(pid):
        if mapped == file and offset == 0:
            return start
    raise ValueError(file)


def _maps(pid: int) -> Iterator[tuple[int, int, int, tuple[str, str] | None]]:
    """Start, end, offset and file of each mapping of a process, in the order of addresses."""
    for line in os.fsdecode(read_proc(f"{pid}/maps")).splitlines():
        addresses, _, offset, device, inode = line.split(None, 5)[:5]
        start, _, end = addresses.partition("-")
        file = None if inode == "0" else (device, inode)
        yield int(start, 16), int(end, 16), int(offset, 16), file
