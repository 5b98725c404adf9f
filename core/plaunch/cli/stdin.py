"""Reads a script from stdin: `plaunch -`."""

from __future__ import annotations

import math
import os
import select
from typing import TYPE_CHECKING

from plaunch.durations import milliseconds
from plaunch.errors import UsageError

if TYPE_CHECKING:
    import logging

    from plaunch.cli.parser import Arguments

STDIN = "-"  # in the place of a script, as for python and torchrun
_MOST = 64 << 20  # bytes
_BLOCK = 64 << 10


def reads_stdin(args: Arguments) -> bool:
    """Whether the workers run a script from stdin."""
    other = args.no_python or args.module or args.run_path
    return args.training_script == STDIN and not other


def refuse_to_run_path(script: str) -> None:
    """Refuse a script from stdin with `--run-path`.

    Raises:
        UsageError: it is one.
    """
    if script == STDIN:
        raise UsageError(
            "--run-path runs a file, and '-' is a script from stdin; leave one of them out"
        )


def read_script(
    args: Arguments, logger: logging.Logger, fd: int = 0, silence: float = 3.0
) -> bytes | None:
    """Read the script of all workers from stdin to its end; None if it is not there.

    Each worker reads it from its own stdin, so it is read once, whatever the number of ranks and
    restarts.

    Args:
        args: the parsed command line.
        logger: logs what it waits for: at once if that is a terminal, otherwise after a while.
        fd: the descriptor.
        silence: seconds to wait without a message.

    Raises:
        UsageError: there is nothing, too much, or nothing that can be read.
    """
    if not reads_stdin(args):
        return None
    is_terminal, is_logged, data = os.isatty(fd), False, bytearray()
    while True:
        if not is_logged and not _is_ready(fd, 0.0 if is_terminal else silence):
            keys = "Ctrl-D on an empty line ends it, " if is_terminal else ""
            logger.info("waiting for the script on stdin (%sCtrl-C ends the wait)", keys)
            is_logged = True
        try:
            block = os.read(fd, _BLOCK)
        except BlockingIOError:  # a process that shares the descriptor made it non-blocking
            _is_ready(fd, math.inf)
            continue
        except OSError as error:
            raise UsageError(
                f"the script is to come from stdin ('-'), which cannot be read: {error.strerror}"
            ) from error
        data += block
        if not block or len(data) > _MOST:
            break
    if not data.strip():
        raise UsageError(
            "the script is to come from stdin ('-'), which is empty; redirect a file or a pipe"
        )
    if len(data) > _MOST:
        raise UsageError(
            f"the script on stdin ('-') is longer than {_MOST >> 20} MiB; save it as a file"
        )
    return bytes(data)


def _is_ready(fd: int, seconds: float) -> bool:
    """Wait until there is something to read, or the end."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(milliseconds(seconds)))
