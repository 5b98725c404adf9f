"""Finds processes that have a worker's stream open after its end; imported if there are any."""

from __future__ import annotations

import fcntl
import os
import select
from typing import TYPE_CHECKING

from plaunch.process import (
    find_field,
    list_numbers,
    read_command,
    read_fds,
    read_proc,
    read_process,
)
from plaunch.texts import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from plaunch_logs_default.streams.writer import WarningLog

_GET_PTY_NUMBER = 0x80045430  # ioctl TIOCGPTN
_MAX_STREAMS = 2  # listed in one message
_MAX_PROCESSES = 4  # listed, each with a message
_MAX_COMMAND = 200  # characters


def report_holders(streams: Mapping[int, str], log: WarningLog, proc: str = "/proc") -> None:
    """Log which processes can still write to streams that are about to be closed.

    Args:
        streams: names of the streams for messages, by the descriptor of the read end.
        log: logs the warnings.
        proc: the folder in which the system lists processes.
    """
    open_streams = {fd: label for fd, label in streams.items() if not _is_hung_up(fd)}
    if not open_streams:
        return
    held = {_find_link_target(fd): label for fd, label in open_streams.items()}
    found = {pid: labels for pid, labels in _find_holders(held, proc) if labels}
    for pid, labels in list(found.items())[:_MAX_PROCESSES]:
        log.warn(
            "%s still has %s open; what it writes there from now on is lost",
            _describe(pid, proc),
            _join(labels),
        )
    if len(found) > _MAX_PROCESSES:
        log.warn("%d more processes have workers' streams open", len(found) - _MAX_PROCESSES)
    if unknown := set(held.values()).difference(*found.values()):
        log.warn(
            "a process that the launcher may not inspect still has %s open; what it writes there "
            "from now on is lost",
            _join(sorted(unknown)),
        )


def _is_hung_up(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, 0)
    return bool(poll.poll(0))


def _find_link_target(fd: int) -> str:
    """The target of links in /proc/PID/fd to the write end of the stream that `fd` reads."""
    if not os.isatty(fd):
        return f"pipe:[{os.fstat(fd).st_ino}]"
    number = fcntl.ioctl(fd, _GET_PTY_NUMBER, bytes(4))
    return f"/dev/pts/{int.from_bytes(number, 'little')}"


def _find_holders(held: Mapping[str, str], proc: str) -> Iterator[tuple[int, list[str]]]:
    for pid in sorted(list_numbers(proc=proc)):
        labels = {
            held[target]
            for fd, target in read_fds(pid, proc).items()
            if target in held and _is_writable(pid, fd, proc)
        }
        yield pid, sorted(labels)


def _is_writable(pid: int, fd: int, proc: str) -> bool:
    """Whether a descriptor is writable; a fork of the launcher also has the read ends."""
    flags = find_field(read_proc(f"{pid}/fdinfo/{fd}", proc), "flags")
    return bool(flags) and int(flags, 8) & os.O_ACCMODE != os.O_RDONLY


def _describe(pid: int, proc: str) -> str:
    if pid == os.getpid():
        return f"the launcher itself (pid {pid}), in which a plugin has copied the descriptor,"
    command = printable(" ".join(read_command(pid, proc)).strip(), _MAX_COMMAND)
    process, launcher = read_process(pid, proc), read_process(os.getpid(), proc)
    # Compare sessions, since each worker leads its own. The parent would not help: orphans of
    # workers become children of the launcher.
    if process is not None and launcher is not None and process.session == launcher.session:
        origin = "which a plugin of the launcher has started"
    else:
        origin = "which a worker or a plugin has left behind"
    return f"process {pid} ({command or 'command unknown'}), {origin},"


def _join(labels: list[str]) -> str:
    listed = " and ".join(labels[:_MAX_STREAMS])
    more = len(labels) - _MAX_STREAMS
    return f"{listed} and {more} more" if more > 0 else listed
