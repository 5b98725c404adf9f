"""Turns a forked process into the worker that a fresh interpreter would be."""

from __future__ import annotations

import fcntl
import io
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from . import title
from .messages import receive, send

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence

_ORPHAN_INTERVAL = 0.0002  # seconds between two checks whether the parent has exited


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
        title.show_variable(name, value)
    sys.argv[1:] = message["arguments"]
    sys.orig_argv[:] = message["command"]
    title.show_name(message["name"])
    title.show_command(message["command"])
    _renew_streams(set(message["targets"]))


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
