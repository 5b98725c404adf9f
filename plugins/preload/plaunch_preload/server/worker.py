"""A forked process becomes a worker: its descriptors, variables, streams and title.

`/proc/PID/cmdline` and `/proc/PID/environ` of a forked process show what its parent was started
with. Python has already copied both, so their memory can be overwritten; each process has its own
copy.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import io
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from .messages import receive, send

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence

_PR_SET_NAME = 15
_ARGUMENTS, _ENVIRONMENT = 45, 47  # indices of fields after the name in /proc/PID/stat
_ORPHAN_INTERVAL = 0.0002  # seconds between two checks whether the parent has exited


def show_name(name: str) -> None:
    """Show `name` where `top` shows the program; at most 15 bytes of it."""
    with contextlib.suppress(OSError, AttributeError):  # only a convenience
        ctypes.CDLL(None).prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]), 0, 0, 0)


def show_command(command: list[str]) -> None:
    """Show a command where `ps` shows the arguments, cut to the available room."""
    try:
        start, end = _find(_ARGUMENTS)
        shown = b"\0".join(os.fsencode(word) for word in command)[: end - start - 1]
        _write(start, shown.ljust(end - start, b"\0"))
    except (OSError, ValueError, IndexError):
        pass  # as above


def show_variable(name: str, value: str) -> None:
    """Show another value of a variable in `/proc/PID/environ`, if there is room.

    Children of this process show it as well. `os.environ` is not changed.
    """
    try:
        start, end = _find(_ENVIRONMENT)
        with open("/proc/self/environ", "rb") as file:
            entries = file.read()[: end - start].split(b"\0")
        before = name.encode() + b"="
        entry = next(entry for entry in entries if entry.startswith(before))
        shown = before + os.fsencode(value)
        if len(shown) <= len(entry):
            at = start + sum(len(other) + 1 for other in entries[: entries.index(entry)])
            _write(at, shown.ljust(len(entry), b":"))
    except (OSError, ValueError, IndexError, StopIteration):
        pass  # as above; the worker is found by its session


def _find(field: int) -> tuple[int, int]:
    with open("/proc/self/stat", "rb") as file:
        # The program's name, in parentheses, may contain any characters.
        fields = file.read().rpartition(b")")[2].split()
    return int(fields[field]), int(fields[field + 1])


def _write(address: int, data: bytes) -> None:
    memory = os.open("/proc/self/mem", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(memory, data, address)
    finally:
        os.close(memory)


def introduce(channel: socket.socket, parent: int) -> tuple[dict[str, Any], list[int]]:
    """Report the process id, and return the message for `become` and its descriptors.

    It first waits until `parent`, which only exists to make this process the launcher's child, has
    exited. If the launcher times out, the process exits without an answer. Until there is one, it
    is in the fork server's group, and so ends with it; then it leads its own session.
    """
    while os.getppid() == parent:
        time.sleep(_ORPHAN_INTERVAL)
    try:
        send(channel, {"pid": os.getpid(), "parent": os.getppid()})
        message, fds = receive(channel)
    except OSError:
        os._exit(1)
    if message is None:
        os._exit(1)
    os.setsid()
    return message, fds


def become(
    message: Mapping[str, Any],
    fds: Sequence[int],
    changes: Mapping[str, str | None],
    umask: int | None,
) -> None:
    """Become the requested worker.

    Args:
        message: `variables` is the whole environment, `arguments` are those after the program,
            `command` is the command of a fresh worker, `folder` and `umask` are the working folder
            and the umask, `shown` are variables that other processes see with another value, and
            `name` is the name in `top`. `targets` are the numbers of the descriptors.
        fds: the descriptors.
        changes: variables that modules have set during their import; None if they removed one.
        umask: the umask that modules have set, which replaces that in the message.

    Raises:
        OSError: the system rejects it.
    """
    _take_fds(dict(zip(message["targets"], fds, strict=True)))
    os.umask(message["umask"] if umask is None else umask)
    os.chdir(message["folder"])
    variables: dict[str, str] = dict(message["variables"])
    for name, value in changes.items():
        if value is None:
            variables.pop(name, None)
        else:
            variables[name] = value
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    for name, value in variables.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    for name, value in message["shown"].items():
        show_variable(name, value)
    sys.argv[1:] = message["arguments"]
    sys.orig_argv[:] = message["command"]
    show_name(message["name"])
    show_command(message["command"])
    _renew_streams(set(message["targets"]))


def renew_caches() -> None:
    """Renew what the interpreter has cached of the process and of the folders in `sys.path`."""
    threading: Any = sys.modules.get("threading")
    if threading is not None and sys.version_info < (3, 13):  # later ones do so in each fork
        threading.main_thread()._set_native_id()
    for path, finder in list(sys.path_importer_cache.items()):
        if finder is None:  # a folder that did not exist, which would never be found
            del sys.path_importer_cache[path]
        elif hasattr(finder, "invalidate_caches"):
            finder.invalidate_caches()


def _take_fds(given: dict[int, int]) -> None:
    """Move each descriptor to its target number; empties `given`."""
    above = max((*given, 2)) + 1
    while given:
        for target, fd in list(given.items()):
            if target == fd:
                os.set_inheritable(fd, True)
                del given[target]
            elif target in given.values():
                # That number is a descriptor that has yet to be moved.
                other = next(name for name, number in given.items() if number == target)
                given[other] = fcntl.fcntl(target, fcntl.F_DUPFD, above)
                os.close(target)
            else:
                os.dup2(fd, target)
                os.close(fd)
                del given[target]


def _renew_streams(there: set[int]) -> None:
    """Create Python's streams again for these descriptors.

    The objects stay the same, because modules may have passed them to loggers.
    """
    streams: Any = sys
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if fd not in there:
            os.close(fd)
            setattr(streams, name, None)
            setattr(streams, f"__{name}__", None)
        elif isinstance(stream, io.TextIOWrapper) and stream.fileno() == fd:
            _renew(stream, fd)


def _renew(stream: io.TextIOWrapper, fd: int) -> None:
    """Initialize a stream as a new interpreter of CPython does."""
    buffer: Any = stream.buffer
    is_buffered = hasattr(buffer, "raw")  # not with `python -u`
    mode = "r" if fd == 0 else "w"
    raw: Any = io.FileIO(fd, mode, closefd=False)
    raw.name = f"<{('stdin', 'stdout', 'stderr')[fd]}>"
    if is_buffered:
        buffer.__init__(raw, max(raw._blksize, io.DEFAULT_BUFFER_SIZE))
    stream.__init__(  # type: ignore[misc]
        buffer if is_buffered else raw,
        encoding=stream.encoding,
        errors=stream.errors,
        newline="\n",
        line_buffering=is_buffered and (fd == 2 or os.isatty(fd)),
        write_through=stream.write_through,
    )
    stream.mode = mode  # type: ignore[misc]
